//! A user's own op: one trait, with or without a gradient.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use thalweg_core::{View, ViewMut};
use thalweg_kernels::scratch::Scratch;

use crate::apply::apply;
use crate::error::{OpError, fail};
use crate::meta::Meta;
use crate::ops::{Cost, Grad, Keep, Op, Vjp};
use crate::tensor::Tensor;

/// An op written outside this library.
///
/// ```
/// use thalweg_core::{View, ViewMut};
/// use thalweg_tensor::{Meta, OpError, Tensor, custom, grad, ops::CustomOp};
///
/// struct Cube;
/// impl CustomOp for Cube {
///     fn name(&self) -> &str { "cube" }
///     fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> { Ok(x[0].clone()) }
///     fn eval(&self, x: &[&View], y: &mut ViewMut) { y.map_f32(x[0], |v| v * v * v) }
///     fn vjp(&self, x: &[Tensor], _y: &Tensor, dy: &Tensor) -> Vec<Option<Tensor>> {
///         vec![Some(dy * &x[0].square() * 3.0)]
///     }
/// }
///
/// let x = Tensor::from([1.0f32, 2.0]);
/// assert_eq!(grad(|x| custom(Cube, &[x]).sum(()))(&x).to_vec::<f32>(), [3.0, 12.0]);
/// ```
pub trait CustomOp: Send + Sync + 'static {
    /// The name in messages.
    fn name(&self) -> &str;

    /// Dtype and shape of the result, or why there is none.
    fn infer(&self, inputs: &[&Meta]) -> Result<Meta, OpError>;

    /// Fills the result.
    fn eval(&self, inputs: &[&View<'_>], output: &mut ViewMut<'_>);

    /// [`CustomOp::eval`] for an op that may fail on the values it meets.
    fn try_eval(&self, inputs: &[&View<'_>], output: &mut ViewMut<'_>) -> Result<(), OpError> {
        self.eval(inputs, output);
        Ok(())
    }

    /// Work and traffic of one call, for plans and profiles; as of an elementwise op unless it says so.
    fn cost(&self, inputs: &[&Meta], output: &Meta) -> Cost {
        Cost::elementwise(inputs, output)
    }

    /// What the op runs inside, a line per step, for plans.
    fn inside(&self) -> Vec<String> {
        Vec::new()
    }

    /// Whether computing the result does something besides, such as printing: in a compiled function the op then runs once per
    /// call also if nobody reads the result, and such ops run in the order in which they were applied.
    fn has_effect(&self) -> bool {
        false
    }

    /// The operand that the result repeats, of an op that is there for its gradients alone: a compiled function, which is
    /// differentiated before it is compiled, does without it.
    fn repeats(&self) -> Option<usize> {
        None
    }

    /// What the op is, for graphs as text: whoever reads it must be able to make the op from it. `None` for an op that is code
    /// and nothing else; a graph with it can be printed but not read back.
    fn text(&self) -> Option<String> {
        None
    }

    /// The gradient of each operand given the gradient of the result, written with tensors, so that
    /// it can be differentiated again; `None` is zero. Without it the op has no gradient, and
    /// asking for one is an error that names the op.
    fn vjp(&self, _inputs: &[Tensor], _output: &Tensor, _dy: &Tensor) -> Vec<Option<Tensor>> {
        Vec::new()
    }
}

/// Applies a user's op. Panics at the caller's line when `infer` refuses the operands.
#[track_caller]
pub fn custom(op: impl CustomOp, inputs: &[&Tensor]) -> Tensor {
    match apply(Op::Custom(Custom::new(op)), inputs) {
        Ok(y) => y,
        Err(error) => fail(error),
    }
}

/// A shared user op; equal to itself only.
#[derive(Clone)]
pub struct Custom(Arc<dyn CustomOp>);

impl Custom {
    pub(crate) fn name(&self) -> &'static str {
        "custom"
    }

    /// Shares an op.
    pub fn new(op: impl CustomOp) -> Self {
        Self(Arc::new(op))
    }

    /// An op that somebody else holds too.
    pub fn shared(op: Arc<impl CustomOp>) -> Self {
        Self(op)
    }

    /// See [`CustomOp::text`].
    pub fn text(&self) -> Option<String> {
        self.0.text()
    }

    pub(crate) fn label(&self) -> &str {
        self.0.name()
    }

    pub(crate) fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        self.0.cost(x, y)
    }

    pub(crate) fn inside(&self) -> Vec<String> {
        self.0.inside()
    }

    pub(crate) fn has_effect(&self) -> bool {
        self.0.has_effect()
    }

    pub(crate) fn repeats(&self) -> Option<usize> {
        self.0.repeats()
    }

    pub(crate) fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        self.0.infer(x)
    }

    pub(crate) fn keep(&self) -> Keep {
        // The trait hands out all operands, so all are kept.
        Keep::INPUTS.and(Keep::OUTPUT)
    }

    pub(crate) fn grad(&self, g: &Vjp<'_>) -> Grad {
        let inputs: Vec<Tensor> = (0..g.n_inputs()).map(|i| g.x(i).clone()).collect();
        let grads = self.0.vjp(&inputs, &g.y(), g.dy());
        if grads.is_empty() {
            return Grad::None(
                "this custom op has no `vjp`; write one, or use `stop_gradient` on its operands",
            );
        }
        Grad::Inputs(grads.into())
    }

    pub(crate) fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let x = Scratch::each(x.len(), |i| &x[i]);
        self.0.try_eval(&x, y)
    }
}

impl PartialEq for Custom {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Custom {}

impl Hash for Custom {
    fn hash<H: Hasher>(&self, state: &mut H) {
        Arc::as_ptr(&self.0).hash(state);
    }
}

impl std::fmt::Debug for Custom {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.0.name())
    }
}
