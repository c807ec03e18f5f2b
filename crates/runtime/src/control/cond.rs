//! One of two bodies, by a condition.

use smallvec::SmallVec;
use thalweg_core::{DType, View, ViewMut};
use thalweg_graph::{Closed, Graph, Kind, Literal, Node, NodeId, Traced};
use thalweg_kernels::scratch::Scratch;
use thalweg_tensor::ops::{Cost, CustomOp, Op};
use thalweg_tensor::{Meta, OpError, Param, Tensor};

use super::body::{Body, misfit, nothing, of_op, place_operands, pull_back, require_operands};
use super::packing::Packing;
use super::{Several, after_set, metas, reaches, require_bool, results_of, skeleton, tensors, text};
use crate::tree::Tree;

/// `then()` where `condition`, a single `bool`, is true, else `otherwise()`: only that one is run. Both
/// give results of the same structure, dtypes and shapes; what is no tensor in them is the same in both.
///
/// ```
/// use thalweg_runtime::{cond, jit};
/// use thalweg_tensor::Tensor;
/// let mut f = jit(|x: Tensor| cond(&x.sum(()).gt(0.0), || x.sqrt(), || -&x));
/// assert_eq!(f.call(Tensor::from([4.0f32])).unwrap().item::<f32>(), 2.0);
/// assert_eq!(f.call(Tensor::from([-4.0f32])).unwrap().item::<f32>(), 4.0);
/// ```
#[track_caller]
pub fn cond<R: Tree>(condition: &Tensor, then: impl Fn() -> R, otherwise: impl Fn() -> R) -> R {
    require_bool("cond", condition.meta());
    if !condition.is_traced() {
        return if holds(condition) { then() } else { otherwise() };
    }
    let mut shapes = Vec::new();
    let branches = [&then as &dyn Fn() -> R, &otherwise].map(|branch| {
        Traced::record(&[], |_| {
            let result = branch();
            shapes.push(skeleton(&result));
            tensors(&result)
        })
        .close()
    });
    let shape = shapes.pop().expect("both branches were traced");
    assert!(
        shapes[0].fits(&shape),
        "cond: the branches give different structures, or different plain numbers or names, which a compiled \
         function cannot choose between; make both of one structure, and a number that depends on the branch a tensor"
    );
    let n_results = tensors(&shape).len();
    let results = choose(condition, branches, n_results);
    let mut results = results.into_iter();
    shape.map(&mut |_| results.next().expect("one result per tensor"))
}

fn holds(condition: &Tensor) -> bool {
    condition.reshape(()).item::<bool>()
}

/// One of two graphs, by a condition. Operands: the condition, then what either branch found around it, which both get.
pub(super) struct Choice {
    pub(super) bodies: [Body; 2],
    packing: Packing,
}

impl Choice {
    /// The branches have the same operands and give the same kinds of results.
    pub(super) fn new(bodies: [Body; 2]) -> Self {
        let packing = Packing::new(bodies[0].results());
        Self { bodies, packing }
    }
}

/// Applies a choice and sets the parameters that the branches set.
#[track_caller]
fn choose(condition: &Tensor, mut branches: [Closed; 2], n_results: usize) -> Vec<Tensor> {
    // Both branches hand out all parameters that either sets, in one order.
    let mut written: Vec<Param> = Vec::new();
    for p in branches.iter().flat_map(|b| b.written.iter().map(|&p| b.params[p].clone())) {
        if written.iter().all(|w| w.id() != p.id()) {
            written.push(p);
        }
    }
    for branch in &mut branches {
        hand_out(branch, &written, n_results);
    }
    let [then, otherwise] = branches.each_ref().map(|b| b.graph.output_metas());
    assert!(then == otherwise, "cond: the branches give different results: {then:?} and {otherwise:?}");
    let (operands, graphs) = together(branches);
    let operands: Vec<Tensor> = std::iter::once(condition.clone()).chain(operands).collect();
    let read_again: Vec<bool> =
        (0..written.len()).map(|i| graphs.iter().any(|g| reads(g, n_results, i))).collect();
    let mut results = results_of(Choice::new(graphs.map(Body::new)), &operands);
    let values = results.split_off(n_results);
    after_set("cond", results, &written, values, |i| read_again[i])
}

/// Whether a result of a branch reads the i-th parameter after it was set there.
fn reads(branch: &Graph, n_results: usize, i: usize) -> bool {
    let ids: Vec<NodeId> = branch.outputs.iter().map(|&(_, id)| id).collect();
    let is_set = matches!(branch.op(ids[n_results + i]), Some(Op::StopGradient(_)));
    is_set && reaches(branch, &ids[..n_results], ids[n_results + i])
}

/// The branches as functions of everything that either found. What both see is one operand: as two, its gradients
/// would be added to the zeros of the branch that was not taken.
fn together(branches: [Closed; 2]) -> (Vec<Tensor>, [Graph; 2]) {
    let mut operands: Vec<Tensor> = Vec::new();
    let mut place = |t: Tensor| match operands.iter().position(|o| o.is_same(&t)) {
        Some(place) => place,
        None => {
            operands.push(t);
            operands.len() - 1
        }
    };
    let places = branches.each_ref().map(|b| {
        let found = b.captured.iter().cloned().chain(b.params.iter().map(Param::get));
        found.map(&mut place).collect::<Vec<usize>>()
    });
    let kinds = metas(&operands);
    let graphs = [0, 1].map(|i| place_operands(&branches[i].graph, &places[i], &kinds));
    (operands, graphs)
}

/// Makes the last results of a branch the values of these parameters: new where it sets them, old
/// where it does not.
fn hand_out(branch: &mut Closed, written: &[Param], n_results: usize) {
    let set = branch.graph.outputs.split_off(n_results);
    let own: Vec<usize> = branch.written.iter().map(|&p| branch.params[p].id()).collect();
    for param in written {
        let id = match own.iter().position(|&id| id == param.id()) {
            Some(i) => set[i].1,
            None => old_value(branch, param),
        };
        branch.graph.outputs.push((param.name().to_owned(), id));
    }
}

/// The operand that holds a parameter's value.
fn old_value(branch: &mut Closed, param: &Param) -> NodeId {
    let n_before = branch.graph.inputs.len() - branch.params.len();
    let known = branch.params.iter().position(|p| p.id() == param.id());
    let position = known.unwrap_or_else(|| {
        branch.params.push(param.clone());
        branch.graph.inputs.push(param.name().to_owned());
        branch.params.len() - 1
    });
    branch.graph.input(n_before + position, &param.meta())
}

impl Several for Choice {
    fn packing(&self) -> &Packing {
        &self.packing
    }

    /// A choice between the pull-backs of the branches.
    fn pull(&self, x: &[Tensor], dy: &[Option<Tensor>], wants: &[bool]) -> Vec<Option<Tensor>> {
        let (condition, operands) = x.split_first().expect("the condition comes first");
        let mut grads = if condition.is_traced() {
            self.pull_both(condition, operands, dy, &wants[1..])
        } else {
            pull_back(&self.bodies[usize::from(!holds(condition))].graph, operands, dy, &wants[1..])
        };
        grads.insert(0, None);
        grads
    }
}

impl Choice {
    fn pull_both(
        &self,
        condition: &Tensor,
        operands: &[Tensor],
        dy: &[Option<Tensor>],
        wants: &[bool],
    ) -> Vec<Option<Tensor>> {
        let mut reached: Vec<Vec<bool>> = Vec::new();
        let mut branches = self.bodies.each_ref().map(|body| {
            Traced::record(&[], |_| {
                let grads = pull_back(&body.graph, operands, dy, wants);
                reached.push(grads.iter().map(Option::is_some).collect());
                grads.into_iter().flatten().collect()
            })
            .close()
        });
        let either: Vec<bool> = reached[0].iter().zip(&reached[1]).map(|(a, b)| *a || *b).collect();
        for (branch, reached) in branches.iter_mut().zip(&reached) {
            let mut own = std::mem::take(&mut branch.graph.outputs).into_iter().map(|(_, id)| id);
            for i in (0..operands.len()).filter(|&i| either[i]) {
                let id = match reached[i] {
                    true => own.next().expect("one result per operand that is reached"),
                    false => branch.graph.push(constant(nothing(operands[i].meta()))),
                };
                branch.graph.outputs.push((format!("y{i}"), id));
            }
        }
        let n_results = either.iter().filter(|&&e| e).count();
        let mut grads = choose(condition, branches, n_results).into_iter();
        either.into_iter().map(|reached| if reached { grads.next() } else { None }).collect()
    }
}

fn constant(t: Tensor) -> Node {
    let meta = t.meta().clone();
    Node {
        kind: Kind::Literal(Literal::new(t)),
        inputs: SmallVec::new(),
        meta,
        at: None,
        region: 0,
        group: 0,
    }
}

impl CustomOp for Choice {
    fn name(&self) -> &str {
        "cond"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, OpError> {
        let [condition, operands @ ..] = inputs else { return Err(misfit("cond", 0)) };
        if condition.dtype != DType::Bool || condition.numel() != 1 {
            return Err(misfit("cond", 0));
        }
        require_operands("cond", operands, &self.bodies[0].operands())?;
        Ok(self.packing.meta())
    }

    fn text(&self) -> Option<String> {
        Some(text::of_choice(self))
    }

    /// That of the branch with more work: which one runs is not known before.
    fn cost(&self, _inputs: &[&Meta], _output: &Meta) -> Cost {
        let [then, otherwise] = self.bodies.each_ref().map(Body::cost);
        if (otherwise.flops, otherwise.bytes) > (then.flops, then.bytes) { otherwise } else { then }
    }

    fn has_effect(&self) -> bool {
        self.bodies.iter().any(Body::has_effect)
    }

    fn inside(&self) -> Vec<String> {
        [self.bodies[0].inside("then"), self.bodies[1].inside("otherwise")].concat()
    }

    fn eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) {
        self.try_eval(x, y).unwrap_or_else(|e| panic!("{e}"));
    }

    fn try_eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let holds = x[0].iter::<bool>().next().unwrap_or(false);
        let mut body = self.bodies[usize::from(!holds)].hold()?;
        let operands = Scratch::each(x.len() - 1, |i| *x[1 + i]);
        let results = body.run_on(&operands).map_err(of_op)?;
        results.iter().enumerate().for_each(|(i, r)| self.packing.write(i, 0, &r.view(), y));
        Ok(())
    }

    fn vjp(&self, x: &[Tensor], _y: &Tensor, dy: &Tensor) -> Vec<Option<Tensor>> {
        self.pull_packed(x, dy)
    }
}
