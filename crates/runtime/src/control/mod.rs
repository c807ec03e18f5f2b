//! Decisions and loops that depend on values: [`cond`], [`while_loop`], [`scan`].
//!
//! Outside a trace they are plain Rust. Inside, each body is traced by itself and becomes part of one
//! op, which runs it as often as the values say. Bodies see everything around them, tensors and
//! parameters; what they see becomes an operand of the op, so that gradients reach it. Results of
//! several tensors travel through the one result of the op end to end. Bodies are compiled with the options
//! of the `jit` that traces them.

mod packing;
mod text;

use std::cell::RefCell;
use std::sync::{Mutex, PoisonError};

use thalweg_core::{DType, View, ViewMut, with_dtype};
use thalweg_graph::{Closed, Graph, Traced};
use thalweg_tensor::ops::{Cost, CustomOp};
use thalweg_tensor::{Meta, OpError, Param, Tensor, custom, trace, vjp};

use crate::error::RunError;
use crate::executor::Executor;
use crate::jit::JitOptions;
use crate::plan::Plan;
use crate::tree::Tree;
use packing::Packing;

pub use text::parse_graph;

/// `then()` where `condition`, a single `bool`, is true, else `otherwise()`: only that one is run. Both
/// give results of the same structure, dtypes and shapes.
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
    assert!(
        condition.dtype() == DType::Bool && condition.numel() == 1,
        "cond: the condition is {}, not a single bool (compare, or reduce with `all` or `any`)",
        condition.meta()
    );
    if !condition.is_traced() {
        let holds = condition.reshape(()).item::<bool>();
        return if holds { then() } else { otherwise() };
    }
    let mut shape = None;
    let branches = [&then as &dyn Fn() -> R, &otherwise].map(|branch| {
        Traced::record(&[], |_| {
            let result = branch();
            let tensors = tensors(&result);
            shape = Some(result.map(&mut placeholder));
            tensors
        })
        .close()
    });
    let shape = shape.expect("both branches were traced");
    let n_results = tensors(&shape).len();
    let results = choose(condition, branches, n_results);
    let mut results = results.into_iter();
    shape.map(&mut |_| results.next().expect("one result per tensor"))
}

/// Goes on with `state = body(state)` as long as `condition(&state)`, a single `bool`, is true. The
/// body keeps dtypes and shapes, and may not set parameters. Gradients run the loop again and keep
/// the state of each turn.
///
/// ```
/// use thalweg_runtime::{jit, while_loop};
/// use thalweg_tensor::Tensor;
/// let mut halve = jit(|x: Tensor| while_loop(x, |x| x.abs().amax(()).gt(1.0), |x| x * 0.5));
/// assert_eq!(halve.call(Tensor::from([12.0f32, 2.0])).unwrap().to_vec::<f32>(), [0.75, 0.125]);
/// ```
#[track_caller]
pub fn while_loop<T: Tree>(state: T, condition: impl Fn(&T) -> Tensor, body: impl Fn(T) -> T) -> T {
    if !trace::is_recording() {
        let mut state = state;
        while condition(&state).reshape(()).item::<bool>() {
            state = body(state);
        }
        return state;
    }
    let start = tensors(&state);
    let kinds = metas(&start);
    let turn = Traced::record(&kinds, |x| tensors(&body(with_tensors(&state, x)))).close();
    let test = Traced::record(&kinds, |x| vec![condition(&with_tensors(&state, x))]).close();
    turn.refuse_writes("while_loop");
    let results = Loop::unroll(turn, Some(test), 0, &start, &[]);
    with_tensors(&state, &results)
}

/// `(state, y) = body(state, x)` for each slice x of `xs` along axis 0, which all its tensors have in
/// common: the last state, and the y's stacked along a new axis 0.
///
/// ```
/// use thalweg_runtime::{jit, scan};
/// use thalweg_tensor::Tensor;
/// let mut sums = jit(|x: Tensor| scan(Tensor::scalar(0.0f32), x, |sum, x| (&sum + &x, &sum + &x)));
/// let (total, partial) = sums.call(Tensor::from([1.0f32, 2.0, 3.0])).unwrap();
/// assert_eq!(total.item::<f32>(), 6.0);
/// assert_eq!(partial.to_vec::<f32>(), [1.0, 3.0, 6.0]);
/// ```
#[track_caller]
pub fn scan<S: Tree, X: Tree, Y: Tree>(state: S, xs: X, body: impl Fn(S, X) -> (S, Y)) -> (S, Y) {
    let all = tensors(&xs);
    let n_steps = all.first().map_or(0, |x| x.size(0));
    assert!(
        n_steps > 0 && all.iter().all(|x| x.rank() > 0 && x.size(0) == n_steps),
        "scan: the tensors to go over must share an axis 0 that is not empty, they are {:?}",
        metas(&all)
    );
    let slice = |t: usize| xs.map(&mut |x| x.select(0, t as isize));
    if !trace::is_recording() {
        let (mut state, mut ys) = (state, Vec::new());
        for t in 0..n_steps {
            let (next, y) = body(state, slice(t));
            state = next;
            ys.push(y);
        }
        let each: Vec<Vec<Tensor>> = ys.iter().map(tensors).collect();
        let n = each[0].len();
        let stacked: Vec<Tensor> = (0..n)
            .map(|k| Tensor::stack(&each.iter().map(|y| y[k].clone()).collect::<Vec<_>>(), 0))
            .collect();
        return (state, with_tensors(&ys[0], &stacked));
    }
    let (start, kinds) = (tensors(&state), tensors(&slice(0)));
    let mut shape = None;
    let operands: Vec<Meta> = metas(&start).into_iter().chain(metas(&kinds)).collect();
    let turn = Traced::record(&operands, |x| {
        let (s, x) = x.split_at(start.len());
        let (state, y) = body(with_tensors(&state, s), with_tensors(&xs, x));
        let results = [tensors(&state), tensors(&y)].concat();
        shape = Some(y.map(&mut placeholder));
        results
    })
    .close();
    turn.refuse_writes("scan");
    let results = Loop::unroll(turn, None, n_steps, &start, &all);
    let (last, ys) = results.split_at(start.len());
    (with_tensors(&state, last), with_tensors(&shape.expect("the body was traced"), ys))
}

fn tensors<T: Tree>(tree: &T) -> Vec<Tensor> {
    let mut list = Vec::new();
    tree.visit(&mut |t| list.push(t.clone()));
    list
}

fn with_tensors<T: Tree>(tree: &T, tensors: &[Tensor]) -> T {
    let mut tensors = tensors.iter();
    tree.map(&mut |_| tensors.next().expect("one tensor per place").clone())
}

fn metas(tensors: &[Tensor]) -> Vec<Meta> {
    tensors.iter().map(|t| t.meta().clone()).collect()
}

fn placeholder(t: &Tensor) -> Tensor {
    Tensor::scalar(0).to_dtype(t.dtype()).broadcast_to(t.shape())
}

trait RefuseWrites {
    fn refuse_writes(&self, op: &str);
}

impl RefuseWrites for Closed {
    #[track_caller]
    fn refuse_writes(&self, op: &str) {
        if let Some(&p) = self.written.first() {
            let name = self.params[p].name();
            panic!(
                "{op}: the body sets param `{name}`; carry its value in the state and set it after the loop"
            );
        }
    }
}

thread_local! {
    static OPTIONS: RefCell<JitOptions> = RefCell::default();
}

/// Bodies that are traced on this thread while it lives are compiled with these options.
pub(crate) struct BodyOptions(JitOptions);

impl BodyOptions {
    pub fn set(options: &JitOptions) -> Self {
        Self(OPTIONS.replace(options.of_body()))
    }
}

impl Drop for BodyOptions {
    fn drop(&mut self) {
        OPTIONS.set(std::mem::take(&mut self.0));
    }
}

/// A graph with an executor; calls from several threads take turns.
struct Body {
    graph: Graph,
    /// Or why it could not be compiled: an error of the first run.
    executor: Result<Mutex<Executor>, RunError>,
}

impl Body {
    fn new(graph: Graph) -> Self {
        let options = OPTIONS.with_borrow(Clone::clone);
        let executor = options.optimise(&graph, &[]).map(|optimised| {
            let plan = options.plan(&optimised, &[]);
            Mutex::new(Executor::new(plan, Vec::new(), Vec::new()))
        });
        Self { graph, executor }
    }

    fn run(&self, inputs: &[Tensor]) -> Result<Vec<Tensor>, OpError> {
        match &self.executor {
            Ok(executor) => {
                let mut executor = executor.lock().unwrap_or_else(PoisonError::into_inner);
                executor.run(inputs).map(<[Tensor]>::to_vec).map_err(of_op)
            }
            Err(why) => Err(OpError::Custom { op: "body".to_owned(), reason: why.to_string() }),
        }
    }

    /// Dtypes and shapes of its operands.
    fn operands(&self) -> Vec<Meta> {
        self.graph.input_metas().into_iter().map(|m| m.expect("bodies keep their operands").clone()).collect()
    }

    /// Work and traffic of one run.
    fn cost(&self) -> Cost {
        self.plan(|plan| plan.steps().fold(Cost::default(), |sum, step| plus(sum, step.cost)))
            .unwrap_or_default()
    }

    /// Its steps under a heading.
    fn inside(&self, heading: &str) -> Vec<String> {
        let steps = self.plan(|plan| {
            let steps = plan.steps().flat_map(|step| {
                let inner = step.inside.iter().map(|line| format!("  | {line}")).collect::<Vec<_>>();
                std::iter::once(format!("  {step}")).chain(inner)
            });
            steps.collect::<Vec<_>>()
        });
        std::iter::once(format!("{heading}:")).chain(steps.into_iter().flatten()).collect()
    }

    fn plan<R>(&self, f: impl FnOnce(&Plan) -> R) -> Option<R> {
        let executor = self.executor.as_ref().ok()?;
        Some(f(executor.lock().unwrap_or_else(PoisonError::into_inner).plan()))
    }
}

fn require_operands(op: &str, got: &[&Meta], want: &[Meta]) -> Result<(), OpError> {
    match (0..got.len().max(want.len())).find(|&i| got.get(i).copied() != want.get(i)) {
        Some(i) => Err(misfit(op, i)),
        None => Ok(()),
    }
}

fn misfit(op: &str, operand: usize) -> OpError {
    let reason = format!("operand {operand} is not what its bodies were traced with");
    OpError::Custom { op: op.to_owned(), reason }
}

fn plus(a: Cost, b: Cost) -> Cost {
    Cost { flops: a.flops + b.flops, bytes: a.bytes + b.bytes }
}

fn times(cost: Cost, n: usize) -> Cost {
    Cost { flops: cost.flops * n as u64, bytes: cost.bytes * n as u64 }
}

fn of_op(error: RunError) -> OpError {
    match error {
        RunError::Op { source, .. } => *source,
        other => unreachable!("operands of a body have the kinds it was traced with: {other}"),
    }
}

fn owned(view: &View<'_>) -> Tensor {
    with_dtype!(view.dtype(), T => Tensor::from_vec(view.iter::<T>().collect::<Vec<T>>(), view.shape()))
}

/// The pull-back of a graph as a function: operands and a gradient per float result in, a gradient
/// per float operand out.
fn pull_back(graph: &Graph, operands: &[Tensor], dy: &[Tensor]) -> Vec<Tensor> {
    let float: Vec<usize> = (0..operands.len()).filter(|&i| operands[i].dtype().is_float()).collect();
    let variables: Vec<Tensor> = float.iter().map(|&i| operands[i].clone()).collect();
    let (_, pull) = vjp(
        |v| {
            let mut x = operands.to_vec();
            float.iter().zip(v).for_each(|(&i, v)| x[i] = v.clone());
            let y = graph.evaluate(&x).unwrap_or_else(|e| panic!("{e}"));
            y.into_iter().filter(|y| y.dtype().is_float()).collect()
        },
        &variables,
    );
    let grads = pull.call(dy).unwrap_or_else(|e| panic!("{e}"));
    grads.into_iter().zip(&variables).map(|(g, v)| g.unwrap_or_else(|| v.zeros_like())).collect()
}

fn float_parts(metas: impl IntoIterator<Item = Meta>) -> Vec<Meta> {
    metas.into_iter().filter(|m| m.dtype.is_float()).collect()
}

/// Spreads gradients of the float operands over all operands.
fn for_floats(operands: &[Tensor], grads: Vec<Tensor>) -> Vec<Option<Tensor>> {
    let mut grads = grads.into_iter();
    operands.iter().map(|x| if x.dtype().is_float() { grads.next() } else { None }).collect()
}

/// One of two graphs, by a condition. Operands: the condition, those of `then`, those of `otherwise`.
struct Choice {
    bodies: [Body; 2],
    n_operands: [usize; 2],
    packing: Packing,
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
    let kinds = branches
        .each_ref()
        .map(|b| b.graph.outputs.iter().map(|(_, id)| b.graph.node(*id).meta.clone()).collect::<Vec<_>>());
    assert!(
        kinds[0] == kinds[1],
        "cond: the branches give different results: {:?} and {:?}",
        kinds[0],
        kinds[1]
    );
    let operands = branches
        .each_ref()
        .map(|b| b.captured.iter().cloned().chain(b.params.iter().map(Param::get)).collect::<Vec<Tensor>>());
    let [kind, _] = kinds;
    let packing = Packing::new(kind);
    let op = Choice {
        n_operands: operands.each_ref().map(Vec::len),
        bodies: branches.map(|b| Body::new(b.graph)),
        packing: packing.clone(),
    };
    let inputs: Vec<&Tensor> = std::iter::once(condition).chain(operands.iter().flatten()).collect();
    let mut results = packing.unpack(&custom(op, &inputs));
    for (param, value) in written.iter().zip(results.split_off(n_results)) {
        param.set(value);
    }
    results
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
fn old_value(branch: &mut Closed, param: &Param) -> thalweg_graph::NodeId {
    let n_before = branch.graph.inputs.len() - branch.params.len();
    let known = branch.params.iter().position(|p| p.id() == param.id());
    let position = known.unwrap_or_else(|| {
        branch.params.push(param.clone());
        branch.graph.inputs.push(param.name().to_owned());
        branch.params.len() - 1
    });
    branch.graph.input(n_before + position, &param.meta())
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
        let want: Vec<Meta> = self.bodies.iter().flat_map(Body::operands).collect();
        require_operands("cond", operands, &want)?;
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

    fn inside(&self) -> Vec<String> {
        [self.bodies[0].inside("then"), self.bodies[1].inside("otherwise")].concat()
    }

    fn eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) {
        self.try_eval(x, y).unwrap_or_else(|e| panic!("{e}"));
    }

    fn try_eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let taken = usize::from(!x[0].iter::<bool>().next().unwrap_or(false));
        let from = 1 + if taken == 0 { 0 } else { self.n_operands[0] };
        let operands: Vec<Tensor> = x[from..from + self.n_operands[taken]].iter().map(|v| owned(v)).collect();
        self.packing.write(&self.bodies[taken].run(&operands)?, y);
        Ok(())
    }

    /// A choice between the pull-backs of the branches.
    fn vjp(&self, x: &[Tensor], _y: &Tensor, dy: &Tensor) -> Vec<Option<Tensor>> {
        let (then, otherwise) = x[1..].split_at(self.n_operands[0]);
        let parts = self.packing.unpack(dy);
        let dy: Vec<Tensor> = parts.into_iter().filter(|d| d.dtype().is_float()).collect();
        let zeros = |list: &[Tensor]| -> Vec<Tensor> {
            list.iter().filter(|t| t.dtype().is_float()).map(Tensor::zeros_like).collect()
        };
        let grads = cond(
            &x[0],
            || [pull_back(&self.bodies[0].graph, then, &dy), zeros(otherwise)].concat(),
            || [zeros(then), pull_back(&self.bodies[1].graph, otherwise, &dy)].concat(),
        );
        std::iter::once(None).chain(for_floats(&x[1..], grads)).collect()
    }
}

/// A body that runs again and again. Its operands: the state, one slice of each sequence, what it
/// found around it. Its results: the state, then what is stacked. Operands of the op: the state, the
/// sequences, what the body found, what the test found.
struct Loop {
    body: Body,
    test: Option<Body>,
    /// How often, where no test decides.
    n_steps: usize,
    n_state: usize,
    n_sequences: usize,
    n_found: usize,
    packing: Packing,
}

impl Loop {
    #[track_caller]
    fn unroll(
        turn: Closed,
        test: Option<Closed>,
        n_steps: usize,
        state: &[Tensor],
        sequences: &[Tensor],
    ) -> Vec<Tensor> {
        let found = |c: &Closed| -> Vec<Tensor> {
            c.captured.iter().cloned().chain(c.params.iter().map(Param::get)).collect()
        };
        let kinds: Vec<Meta> =
            turn.graph.outputs.iter().map(|(_, id)| turn.graph.node(*id).meta.clone()).collect();
        let next = &kinds[..state.len().min(kinds.len())];
        assert!(
            next == metas(state),
            "a loop's body must keep the state's dtypes and shapes: {:?} became {next:?}",
            metas(state)
        );
        let packing = Loop::packing(&turn.graph, state.len(), n_steps);
        let (own, tests) = (found(&turn), test.as_ref().map(found).unwrap_or_default());
        let inputs: Vec<&Tensor> = state.iter().chain(sequences).chain(&own).chain(&tests).collect();
        let op = Loop {
            body: Body::new(turn.graph),
            test: test.map(|t| Body::new(t.graph)),
            n_steps,
            n_state: state.len(),
            n_sequences: sequences.len(),
            n_found: own.len(),
            packing: packing.clone(),
        };
        packing.unpack(&custom(op, &inputs))
    }

    /// Dtypes and shapes of the operands: a sequence has a slice for each turn.
    fn operands(&self) -> Vec<Meta> {
        let mut operands = self.body.operands();
        for slice in operands.iter_mut().skip(self.n_state).take(self.n_sequences) {
            slice.shape = slice.shape.inserted(0, self.n_steps);
        }
        operands.extend(self.test.iter().flat_map(|test| test.operands().split_off(self.n_state)));
        operands
    }

    /// How the gradients of state, sequences and what was found are packed.
    fn packing_of_gradient(&self) -> Packing {
        let mut operands = self.operands();
        operands.truncate(self.n_state + self.n_sequences + self.n_found);
        Packing::new(float_parts(operands))
    }

    /// How the result is packed: the state, then what is stacked.
    fn packing(body: &Graph, n_state: usize, n_steps: usize) -> Packing {
        let mut parts: Vec<Meta> = body.output_metas().into_iter().cloned().collect();
        parts.iter_mut().skip(n_state).for_each(|m| m.shape = m.shape.inserted(0, n_steps));
        Packing::new(parts)
    }

    /// The operands by their roles.
    fn roles<'a>(&self, x: &'a [Tensor]) -> [&'a [Tensor]; 4] {
        let (state, rest) = x.split_at(self.n_state);
        let (sequences, rest) = rest.split_at(self.n_sequences);
        let (found, tests) = rest.split_at(self.n_found);
        [state, sequences, found, tests]
    }

    /// Runs the loop; `each` sees the operands of every turn and what it stacked.
    fn run(
        &self,
        x: &[Tensor],
        mut each: impl FnMut(Vec<Tensor>, &[Tensor]),
    ) -> Result<Vec<Tensor>, OpError> {
        let [state, sequences, found, tests] = self.roles(x);
        let mut state = state.to_vec();
        for t in 0.. {
            let go_on = match &self.test {
                Some(test) => test.run(&[&state[..], tests].concat())?[0].reshape(()).item::<bool>(),
                None => t < self.n_steps,
            };
            if !go_on {
                break;
            }
            let slices: Vec<Tensor> = sequences.iter().map(|s| s.select(0, t as isize)).collect();
            let operands = [&state[..], &slices, found].concat();
            let mut results = self.body.run(&operands)?;
            let stacked = results.split_off(self.n_state);
            each(operands, &stacked);
            state = results;
        }
        Ok(state)
    }
}

impl CustomOp for Loop {
    fn name(&self) -> &str {
        if self.test.is_some() { "while_loop" } else { "scan" }
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, OpError> {
        require_operands(self.name(), inputs, &self.operands())?;
        Ok(self.packing.meta())
    }

    fn text(&self) -> Option<String> {
        Some(text::of_loop(self))
    }

    /// That of all turns of a scan; of one turn where values decide how many there are.
    fn cost(&self, _inputs: &[&Meta], _output: &Meta) -> Cost {
        match &self.test {
            Some(test) => plus(self.body.cost(), test.cost()),
            None => times(self.body.cost(), self.n_steps),
        }
    }

    fn inside(&self) -> Vec<String> {
        match &self.test {
            Some(test) => [test.inside("as long as"), self.body.inside("each turn")].concat(),
            None => self.body.inside(&format!("each of {} turns", self.n_steps)),
        }
    }

    fn eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) {
        self.try_eval(x, y).unwrap_or_else(|e| panic!("{e}"));
    }

    fn try_eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let x: Vec<Tensor> = x.iter().map(|v| owned(v)).collect();
        let mut ys: Vec<Vec<Tensor>> = vec![Vec::new(); self.packing.parts.len() - self.n_state];
        let mut results = self.run(&x, |_, stacked| {
            ys.iter_mut().zip(stacked).for_each(|(list, y)| list.push(y.clone()));
        })?;
        results.extend(ys.iter().map(|list| Tensor::stack(list, 0)));
        self.packing.write(&results, y);
        Ok(())
    }

    fn vjp(&self, x: &[Tensor], _y: &Tensor, dy: &Tensor) -> Vec<Option<Tensor>> {
        let [state, sequences, found, tests] = self.roles(x);
        let turn: Vec<Tensor> = state
            .iter()
            .cloned()
            .chain(sequences.iter().map(|s| s.select(0, 0)))
            .chain(found.iter().cloned())
            .collect();
        let outputs: Vec<Meta> =
            self.body.graph.outputs.iter().map(|(_, id)| self.body.graph.node(*id).meta.clone()).collect();
        let n_operands = turn.len();
        let kinds: Vec<Meta> = metas(&turn).into_iter().chain(float_parts(outputs)).collect();
        let back = Traced::record(&kinds, |v| {
            let (operands, dy) = v.split_at(n_operands);
            pull_back(&self.body.graph, operands, dy)
        })
        .close();
        let op = LoopGrad {
            forward: Loop {
                body: Body::new(self.body.graph.clone()),
                test: self.test.as_ref().map(|t| Body::new(t.graph.clone())),
                packing: self.packing.clone(),
                ..*self
            },
            back: Body::new(back.graph),
            packing: self.packing_of_gradient(),
        };
        let inputs: Vec<&Tensor> = x.iter().chain([dy]).collect();
        let grads = op.packing.clone().unpack(&custom(op, &inputs));
        for_floats(&x[..x.len() - tests.len()], grads).into_iter().chain(tests.iter().map(|_| None)).collect()
    }
}

/// The pull-back of a loop: runs it again, keeps the operands of each turn, and goes back over them.
/// Operands: those of the loop, then the gradient of its result.
struct LoopGrad {
    forward: Loop,
    back: Body,
    packing: Packing,
}

impl CustomOp for LoopGrad {
    fn name(&self) -> &str {
        "loop_grad"
    }

    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, OpError> {
        let want = [self.forward.operands(), vec![self.forward.packing.meta()]].concat();
        require_operands("loop_grad", inputs, &want)?;
        Ok(self.packing.meta())
    }

    fn text(&self) -> Option<String> {
        Some(text::of_loop_grad(self))
    }

    /// That of the loop, and of as many turns back.
    fn cost(&self, inputs: &[&Meta], output: &Meta) -> Cost {
        let n_turns = if self.forward.test.is_some() { 1 } else { self.forward.n_steps };
        plus(self.forward.cost(inputs, output), times(self.back.cost(), n_turns))
    }

    fn inside(&self) -> Vec<String> {
        [self.forward.inside(), self.back.inside("back over each turn")].concat()
    }

    fn eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) {
        self.try_eval(x, y).unwrap_or_else(|e| panic!("{e}"));
    }

    fn try_eval(&self, x: &[&View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let x: Vec<Tensor> = x.iter().map(|v| owned(v)).collect();
        let (dy, x) = x.split_last().expect("the gradient comes last");
        let mut turns = Vec::new();
        self.forward.run(x, |operands, _| turns.push(operands))?;
        let parts = self.forward.packing.unpack(dy);
        let (d_state, d_stacked) = parts.split_at(self.forward.n_state);
        let mut d_state: Vec<Tensor> = d_state.iter().filter(|d| d.dtype().is_float()).cloned().collect();
        let d_stacked: Vec<&Tensor> = d_stacked.iter().filter(|d| d.dtype().is_float()).collect();
        let [_, sequences, found, _] = self.forward.roles(x);
        let n_float = |list: &[Tensor]| list.iter().filter(|t| t.dtype().is_float()).count();
        let mut d_slices: Vec<Vec<Tensor>> = vec![Vec::new(); n_float(sequences)];
        let mut d_found: Vec<Tensor> = found
            .iter()
            .filter(|t| t.dtype().is_float())
            .map(|t| Tensor::zeros(t.shape(), t.dtype()))
            .collect();
        for (t, operands) in turns.iter().enumerate().rev() {
            let dy = d_state.iter().cloned().chain(d_stacked.iter().map(|d| d.select(0, t as isize)));
            let inputs: Vec<Tensor> = operands.iter().cloned().chain(dy).collect();
            let mut grads = self.back.run(&inputs)?.into_iter();
            d_state = grads.by_ref().take(d_state.len()).collect();
            for list in &mut d_slices {
                list.extend(grads.next());
            }
            d_found = d_found.iter().zip(grads).map(|(sum, g)| sum + g).collect();
        }
        let d_sequences = d_slices.into_iter().zip(sequences.iter().filter(|t| t.dtype().is_float())).map(
            |(mut list, whole)| {
                list.reverse();
                if list.is_empty() {
                    Tensor::zeros(whole.shape(), whole.dtype())
                } else {
                    Tensor::stack(&list, 0)
                }
            },
        );
        let grads: Vec<Tensor> = d_state.into_iter().chain(d_sequences).chain(d_found).collect();
        self.packing.write(&grads, y);
        Ok(())
    }
}
