//! Derivatives as functions of functions, and as methods of a loss.

use std::panic::Location;
use std::sync::{Arc, Mutex, PoisonError};

use crate::backward::{Targets, pull_back};
use crate::error::{OpError, fail, or_fail};
use crate::meta::Meta;
use crate::param::leaf;
use crate::rule;
use crate::scalar::Scalar;
use crate::tape::{self, History, Kind, Node};
use crate::tensor::Tensor;
use crate::trace;

/// Something a gradient can be asked for: a parameter, or a tensor marked by
/// [`Tensor::requires_grad`].
pub trait Leaf {
    /// The variable itself.
    fn leaf(&self) -> Tensor;
    /// Its name, for messages.
    fn leaf_name(&self) -> Option<&str> {
        None
    }
}

impl Leaf for Tensor {
    fn leaf(&self) -> Tensor {
        self.clone()
    }
}

/// The gradient of a scalar function of one tensor, as a function.
///
/// ```
/// use thalweg_tensor::{Tensor, grad};
/// let x = Tensor::from([1.0f32, 2.0]);
/// let cubes = |x: &Tensor| (x * x * x).sum(());
/// assert_eq!(grad(cubes)(&x).to_vec::<f32>(), [3.0, 12.0]);
/// assert_eq!(grad(|x| grad(cubes)(x).sum(()))(&x).to_vec::<f32>(), [6.0, 12.0]);
/// ```
#[track_caller]
pub fn grad(f: impl Fn(&Tensor) -> Tensor) -> impl Fn(&Tensor) -> Tensor {
    let f = value_and_grad(f);
    move |x| f(x).1
}

/// A scalar function's value and gradient, as a function.
#[track_caller]
pub fn value_and_grad(f: impl Fn(&Tensor) -> Tensor) -> impl Fn(&Tensor) -> (Tensor, Tensor) {
    let at = Location::caller();
    move |x| match try_value_and_grads(|x| f(&x[0]), std::slice::from_ref(x)) {
        Ok((y, mut grads)) => (y, grads.remove(0)),
        Err(error) => panic!("{error} (differentiated at {at})"),
    }
}

/// The value of a scalar function of several tensors, and its gradient with respect to each. A
/// tensor that the function does not use is an error.
pub fn try_value_and_grads(
    f: impl FnOnce(&[Tensor]) -> Tensor,
    x: &[Tensor],
) -> Result<(Tensor, Vec<Tensor>), OpError> {
    let (y, pull) = vjp(|x| vec![f(x)], x);
    let y = y.into_iter().next().expect("one function value");
    let ones = seed(&y)?;
    let grads = pull.call(&[ones])?;
    let found = grads.into_iter().enumerate().map(|(i, g)| g.ok_or_else(|| unused(None, i)));
    Ok((y, found.collect::<Result<_, _>>()?))
}

/// Evaluates `f` and returns its results with a function that pulls gradients of the results back
/// to gradients of `x`.
pub fn vjp(f: impl FnOnce(&[Tensor]) -> Vec<Tensor>, x: &[Tensor]) -> (Vec<Tensor>, Pullback) {
    tape::deeper(|level| {
        let variables: Vec<Tensor> = x.iter().map(|x| variable(x, level)).collect();
        let results = f(&variables);
        let pull = Pullback::new(&results, &variables, level);
        (results, pull)
    })
    .leave()
}

/// Pulls gradients back; see [`vjp`].
pub struct Pullback {
    results: Vec<(Option<History>, Meta)>,
    targets: Vec<History>,
    level: u32,
}

impl Pullback {
    fn new(results: &[Tensor], variables: &[Tensor], level: u32) -> Self {
        Self {
            results: results.iter().map(|y| (y.history().cloned(), y.meta().clone())).collect(),
            targets: variables.iter().map(|v| v.history().expect("made by `variable`").clone()).collect(),
            level,
        }
    }

    /// The gradient of each operand, given that of each result; `None` where the results do not
    /// depend on an operand.
    pub fn call(&self, dy: &[Tensor]) -> Result<Vec<Option<Tensor>>, OpError> {
        self.sweep(dy, self.level)
    }

    fn sweep(&self, dy: &[Tensor], limit: u32) -> Result<Vec<Option<Tensor>>, OpError> {
        if dy.len() != self.results.len() {
            return Err(OpError::Arity { op: "vjp", want: self.results.len(), got: dy.len() });
        }
        let mut roots = Vec::new();
        for ((history, meta), dy) in self.results.iter().zip(dy) {
            if dy.meta() != meta {
                let hint = "a cotangent has the shape and dtype of its result";
                return Err(OpError::Shapes {
                    op: "vjp",
                    left: meta.shape.clone(),
                    right: dy.shape().clone(),
                    hint,
                });
            }
            roots.extend(history.clone().map(|h| (h, dy.clone())));
        }
        pull_back(&roots, Targets::These(&self.targets), limit)
    }
}

/// Evaluates `f` and its derivative along `v`: (f(x), J·v). No op has a rule for this; it is the
/// gradient of the (linear) pull-back with respect to what is pulled back.
pub fn jvp(
    f: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
    x: &[Tensor],
    v: &[Tensor],
) -> (Vec<Tensor>, Vec<Tensor>) {
    tape::deeper(|level| {
        // The pull-back lies one level inside, so that it is recorded with respect to `dummies`.
        let variables: Vec<Tensor> = x.iter().map(|x| variable(x, level + 1)).collect();
        let results = tape::deeper(|_| f(&variables));
        let dummies: Vec<Tensor> = results.iter().map(|y| variable(&y.zeros_like(), level)).collect();
        let grads = or_fail(Pullback::new(&results, &variables, level + 1).sweep(&dummies, u32::MAX));
        let roots: Vec<(History, Tensor)> = grads
            .iter()
            .zip(v)
            .filter_map(|(g, v)| Some((g.as_ref()?.history()?.clone(), v.clone())))
            .collect();
        let targets: Vec<History> =
            dummies.iter().map(|d| d.history().expect("made by `variable`").clone()).collect();
        let tangents = or_fail(pull_back(&roots, Targets::These(&targets), level));
        let tangents =
            tangents.into_iter().zip(&results).map(|(t, y)| t.unwrap_or_else(|| y.zeros_like())).collect();
        (results, tangents)
    })
    .leave()
}

/// The product of a scalar function's Hessian with `v`, without forming the Hessian.
pub fn hvp(f: impl Fn(&Tensor) -> Tensor, x: &Tensor, v: &Tensor) -> Tensor {
    let (_, pull) = vjp(|x| vec![grad(&f)(&x[0])], std::slice::from_ref(x));
    or_fail(pull.call(std::slice::from_ref(v))).remove(0).unwrap_or_else(|| x.zeros_like())
}

/// All first derivatives of a function: shape `f(x).shape + x.shape`.
pub fn jacobian(f: impl Fn(&Tensor) -> Tensor, x: &Tensor) -> Tensor {
    let (y, pull) = vjp(|x| vec![f(&x[0])], std::slice::from_ref(x));
    let y = &y[0];
    let rows: Vec<Tensor> = (0..y.numel())
        .map(|i| {
            let unit = Tensor::one_hot_flat(i, y);
            or_fail(pull.call(&[unit])).remove(0).unwrap_or_else(|| x.zeros_like())
        })
        .collect();
    let shape: Vec<usize> = y.shape().iter().chain(x.shape().iter()).copied().collect();
    match rows.is_empty() {
        true => Tensor::zeros(shape, x.dtype()),
        false => Tensor::stack(&rows, 0).reshape(shape),
    }
}

/// All second derivatives of a scalar function: shape `x.shape + x.shape`.
pub fn hessian(f: impl Fn(&Tensor) -> Tensor, x: &Tensor) -> Tensor {
    jacobian(grad(f), x)
}

/// Runs `f` on each slice of the operands along axis 0 and stacks the results. An operand whose
/// entry in `mapped` is `false` is handed whole to every call.
#[track_caller]
pub fn vmap(f: impl Fn(&[Tensor]) -> Tensor, mapped: &[bool], x: &[Tensor]) -> Tensor {
    assert_eq!(mapped.len(), x.len(), "vmap: one entry of `mapped` per operand");
    let n = x.iter().zip(mapped).find(|(_, m)| **m).map(|(x, _)| x.size(0)).expect("vmap: nothing is mapped");
    let call = |i: usize| {
        let slice = |(x, &m): (&Tensor, &bool)| if m { x.select(0, i as isize) } else { x.clone() };
        f(&x.iter().zip(mapped).map(slice).collect::<Vec<_>>())
    };
    Tensor::stack(&(0..n).map(call).collect::<Vec<_>>(), 0)
}

/// Runs `f` without recording anything.
pub fn no_grad<R>(f: impl FnOnce() -> R) -> R {
    tape::recording_below(0, f)
}

/// A function with a backward of the user's own. `forward` sees the operands, `backward` sees the
/// operands, the results and the gradients of the results, and returns the gradient of each operand
/// (`None` is zero), written with tensors so that it can be differentiated again.
///
/// `forward` must not use other tensors that want gradients: they would get none, so that is an
/// error.
///
/// ```
/// use thalweg_tensor::{Tensor, custom_vjp, grad};
/// // Identity whose gradient is clipped.
/// let clipped = |x: &Tensor| {
///     custom_vjp(|x| vec![x[0].clone()], |_x, _y, dy| vec![Some(dy[0].clamp(-1.0, 1.0))], &[x]).remove(0)
/// };
/// let x = Tensor::from([1.0f32, -3.0]);
/// assert_eq!(grad(|x| (clipped(x) * 5.0).sum(()))(&x).to_vec::<f32>(), [1.0, 1.0]);
/// ```
#[track_caller]
pub fn custom_vjp<F, B>(forward: F, backward: B, x: &[&Tensor]) -> Vec<Tensor>
where
    F: Fn(&[Tensor]) -> Vec<Tensor>,
    B: Fn(&[Tensor], &[Tensor], &[Tensor]) -> Vec<Option<Tensor>> + Send + Sync + 'static,
{
    let inputs: Vec<Tensor> = x.iter().map(|&x| x.clone()).collect();
    let detached: Vec<Tensor> = inputs.iter().map(Tensor::without_history).collect();
    let outputs = forward(&detached);
    if outputs.iter().any(|y| y.history().is_some_and(|h| tape::records(h.node.level))) {
        let reason = "`forward` uses a tensor that wants a gradient and is no operand; pass it as one";
        fail(OpError::NoGradient { op: "custom_vjp", reason });
    }
    let outputs = rule::noted(&inputs, outputs, &backward, tape::line(Location::caller()));
    let kept = outputs.clone();
    let edges: Vec<Option<History>> = inputs.iter().map(|x| x.history().cloned()).collect();
    let rule = move |dy: &[Option<Tensor>], _: &dyn Fn(usize) -> bool, own: &Arc<Node>| {
        let dy: Vec<Tensor> =
            dy.iter().zip(&kept).map(|(g, y)| g.clone().unwrap_or_else(|| y.zeros_like())).collect();
        // A rule that reads its results is differentiated through them.
        let result = |(i, y): (usize, &Tensor)| match y.dtype().is_float() && tape::records(own.level) {
            true => y.with_history(Some(History { node: Arc::clone(own), output: i as u32 })),
            false => y.clone(),
        };
        Ok(backward(&inputs, &kept.iter().enumerate().map(result).collect::<Vec<_>>(), &dy))
    };
    record_function(outputs, edges, Box::new(rule))
}

/// What a function made of `operands`, with a rule for its gradients: given that of each result, `None` where nobody asks, and
/// whether that of an operand is wanted, the gradient of each operand, `None` where none flows. Unlike [`custom_vjp`] the rule is
/// told what is not needed, and the results are there already; whatever history they have is forgotten. The rule is a shorter way to
/// the gradients that the ops have which made the results: a graph has those ops and not the rule. For other gradients there is
/// [`custom_vjp`].
///
/// ```
/// use thalweg_tensor::{Tensor, grad, with_rule};
/// let tripled = |x: &Tensor| with_rule(vec![x + x + x], &[x], |dy, _| vec![dy[0].as_ref().map(|d| d * 3.0)]).remove(0);
/// assert_eq!(grad(|x| tripled(x) * 0.5)(&Tensor::scalar(2.0f32)).item::<f32>(), 1.5);
/// ```
#[track_caller]
pub fn with_rule(
    results: Vec<Tensor>,
    operands: &[&Tensor],
    rule: impl Fn(&[Option<Tensor>], &dyn Fn(usize) -> bool) -> Vec<Option<Tensor>> + Send + Sync + 'static,
) -> Vec<Tensor> {
    let results: Vec<Tensor> = results.iter().map(Tensor::without_history).collect();
    let edges = operands.iter().map(|x| x.history().cloned()).collect();
    record_function(results, edges, Box::new(move |dy, wants, _| Ok(rule(dy, wants))))
}

/// Runs `f` without keeping its intermediate values; they are computed again when the gradient is
/// asked for. Gradients flow to `x` and to every other tensor that `f` uses.
#[track_caller]
pub fn checkpoint<F>(f: F, x: &[&Tensor]) -> Vec<Tensor>
where
    F: Fn(&[Tensor]) -> Vec<Tensor> + Send + Sync + 'static,
{
    let inputs: Vec<Tensor> = x.iter().map(|&x| x.clone()).collect();
    let born = tape::next_id();
    let recorded = f(&inputs);
    // Whatever `f` reaches that is older than this call: the operands, and what it captured.
    let outside = histories_before(&recorded, born);
    let outputs: Vec<Tensor> = recorded.iter().map(Tensor::without_history).collect();
    drop(recorded);
    let targets = outside.clone();
    let rule = move |dy: &[Option<Tensor>], _: &dyn Fn(usize) -> bool, _: &Arc<Node>| {
        let born = tape::next_id();
        let again = trace::recomputing(&inputs, || tape::recording_all(|| f(&inputs)));
        if histories_before(&again, born).iter().map(|h| h.node.id).ne(targets.iter().map(|h| h.node.id)) {
            let reason = "a parameter used inside was set between the forward and the backward pass";
            return Err(OpError::NoGradient { op: "checkpoint", reason });
        }
        let roots: Vec<(History, Tensor)> =
            again.iter().zip(dy).filter_map(|(y, g)| Some((y.history()?.clone(), g.clone()?))).collect();
        pull_back(&roots, Targets::These(&targets), tape::record_limit())
    };
    record_function(outputs, outside.into_iter().map(Some).collect(), Box::new(rule))
}

/// The histories that lead out of the nodes recorded since `born`.
fn histories_before(results: &[Tensor], born: u64) -> Vec<History> {
    let mut outside: Vec<History> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    let mut stack: Vec<History> = results.iter().filter_map(|y| y.history().cloned()).collect();
    while let Some(h) = stack.pop() {
        if !seen.insert((h.node.id, h.output)) {
            continue;
        }
        if h.node.id < born {
            outside.push(h);
        } else {
            stack.extend(h.node.edges.iter().flatten().cloned());
        }
    }
    outside
}

/// Records a function with a backward of its own, if a gradient may be asked for.
#[track_caller]
pub(crate) fn record_function(
    outputs: Vec<Tensor>,
    edges: Vec<Option<History>>,
    backward: tape::Backward,
) -> Vec<Tensor> {
    let level = edges.iter().flatten().map(|h| h.node.level).min();
    let Some(level) = level.filter(|&l| tape::records(l)) else { return outputs };
    let edges = edges.into_iter().map(|e| e.filter(|h| tape::records(h.node.level))).collect();
    let kind = Kind::Function { outputs: outputs.len(), backward };
    let node = Arc::new(Node { id: tape::next_id(), level, edges, kind, at: Location::caller() });
    let with_history = |(i, y): (usize, Tensor)| {
        let history = History { node: Arc::clone(&node), output: i as u32 };
        if y.dtype().is_float() { y.with_history(Some(history)) } else { y }
    };
    outputs.into_iter().enumerate().map(with_history).collect()
}

/// The same results, which were computed from `x` in a way that has no derivative here: a gradient that would flow through
/// them is an error that names the caller's line and the reason, instead of a part of the sum that is missing.
#[track_caller]
pub fn without_derivative(
    op: &'static str,
    reason: &'static str,
    results: Vec<Tensor>,
    x: &[Tensor],
) -> Vec<Tensor> {
    let at = Location::caller();
    let edges = x.iter().map(|x| x.history().cloned()).collect();
    record_function(
        results,
        edges,
        Box::new(move |_, _, _| Err(OpError::NotDifferentiable { op, reason, at })),
    )
}

/// `x` as a variable of one level, still the same value to all outer levels.
fn variable(x: &Tensor, level: u32) -> Tensor {
    let outer = x.history().cloned();
    let level = outer.as_ref().map_or(level, |h| h.node.level.min(level));
    let kind = Kind::Leaf(Mutex::new(None));
    let node =
        Node { id: tape::next_id(), level, edges: smallvec::smallvec![outer], kind, at: Location::caller() };
    x.with_history(Some(History { node: Arc::new(node), output: 0 }))
}

/// The gradient of a scalar with respect to itself.
fn seed(y: &Tensor) -> Result<Tensor, OpError> {
    if y.numel() != 1 {
        let reason =
            "the result is not a scalar; reduce it (`.sum(())`, `.mean(())`) or use `vjp` with a cotangent";
        return Err(OpError::NoGradient { op: "grad", reason });
    }
    if !y.dtype().is_float() {
        return Err(OpError::NoGradient { op: "grad", reason: "the result is not a float" });
    }
    Ok(Scalar::Float(1.0).spread(y.dtype(), y.shape()))
}

fn unused(name: Option<&str>, position: usize) -> OpError {
    OpError::Unused { name: name.map_or_else(|| format!("operand {position}"), str::to_owned) }
}

impl Tensor {
    /// The same values without their history, for code that gives them another one. Unlike [`Tensor::stop_gradient`] this
    /// leaves no mark in a trace: a graph that is made of it has its gradients.
    #[doc(hidden)]
    pub fn without_history(&self) -> Tensor {
        if self.is_tracked() { self.with_history(None) } else { self.clone() }
    }

    /// The same values as a variable that gradients can be asked for. They end there: whatever the values were made from
    /// gets none through it.
    #[track_caller]
    pub fn requires_grad(&self) -> Tensor {
        leaf(&self.stop_gradient())
    }

    /// What `backward` has left in a variable.
    pub fn leaf_grad(&self) -> Option<Tensor> {
        match &self.history()?.node.kind {
            Kind::Leaf(slot) => slot.lock().unwrap_or_else(PoisonError::into_inner).clone(),
            _ => None,
        }
    }

    /// Forgets what `backward` has left.
    pub(crate) fn clear_leaf_grad(&self) {
        if let Some(Kind::Leaf(slot)) = self.history().map(|h| &h.node.kind) {
            *slot.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
    }

    /// The gradient of this scalar with respect to each variable. Panics, naming it, when the
    /// scalar does not depend on one: a parameter that silently gets no gradient is a bug.
    #[track_caller]
    pub fn grad<L: Leaf + ?Sized>(&self, variables: &[&L]) -> Vec<Tensor> {
        or_fail(self.try_grad(variables))
    }

    /// [`Tensor::grad`] as a `Result`.
    pub fn try_grad<L: Leaf + ?Sized>(&self, variables: &[&L]) -> Result<Vec<Tensor>, OpError> {
        let grads = self.grads(variables, 0)?;
        let name = |(i, g): (usize, Option<Tensor>)| g.ok_or_else(|| unused(variables[i].leaf_name(), i));
        grads.into_iter().enumerate().map(name).collect()
    }

    /// [`Tensor::grad`], with zeros for a variable that this scalar does not depend on.
    #[track_caller]
    pub fn grad_or_zeros<L: Leaf + ?Sized>(&self, variables: &[&L]) -> Vec<Tensor> {
        let grads = or_fail(self.grads(variables, 0));
        let zero = |(g, v): (Option<Tensor>, &&L)| g.unwrap_or_else(|| v.leaf().zeros_like());
        grads.into_iter().zip(variables).map(zero).collect()
    }

    /// [`Tensor::grad`], itself recorded, so that it can be differentiated again with respect to
    /// the same variables.
    #[track_caller]
    pub fn grad_recorded<L: Leaf + ?Sized>(&self, variables: &[&L]) -> Vec<Tensor> {
        let grads = or_fail(self.grads(variables, u32::MAX));
        let name =
            |(i, g): (usize, Option<Tensor>)| or_fail(g.ok_or_else(|| unused(variables[i].leaf_name(), i)));
        grads.into_iter().enumerate().map(name).collect()
    }

    fn grads<L: Leaf + ?Sized>(&self, variables: &[&L], limit: u32) -> Result<Vec<Option<Tensor>>, OpError> {
        let seed = seed(self)?;
        let leaves: Vec<Tensor> = variables.iter().map(|v| v.leaf()).collect();
        let mut targets = Vec::new();
        for (i, leaf) in leaves.iter().enumerate() {
            targets.push(leaf.history().cloned().ok_or_else(|| unused(variables[i].leaf_name(), i))?);
        }
        let roots: Vec<(History, Tensor)> = self.history().map(|h| (h.clone(), seed)).into_iter().collect();
        pull_back(&roots, Targets::These(&targets), limit)
    }

    /// Adds the gradient of this scalar to every variable it depends on; read it there with
    /// [`crate::Param::grad`] or [`Tensor::leaf_grad`].
    #[track_caller]
    pub fn backward(&self) {
        or_fail(self.try_backward());
    }

    /// [`Tensor::backward`] as a `Result`.
    pub fn try_backward(&self) -> Result<(), OpError> {
        let seed = seed(self)?;
        let Some(history) = self.history() else {
            let reason = "nothing it depends on is a variable (use a `Param` or `requires_grad`)";
            return Err(OpError::NoGradient { op: "backward", reason });
        };
        pull_back(&[(history.clone(), seed)], Targets::Leaves, 0).map(|_| ())
    }
}

/// Hands results out of a derivative: they keep their history only where the code around the
/// derivative records it.
trait Leave {
    fn leave(self) -> Self;
}

impl<T> Leave for (Vec<Tensor>, T) {
    fn leave(mut self) -> Self {
        let depth = tape::depth();
        for y in &mut self.0 {
            let outer = |h: &History| h.node.level <= depth && tape::records(h.node.level);
            if !y.history().is_some_and(outer) {
                // Where nothing is recorded a graph needs a mark of it; elsewhere only the variable of this derivative goes.
                *y = if tape::records(0) { y.without_history() } else { y.stop_gradient() };
            }
        }
        self
    }
}
