//! What the ops over a whole sequence have in common.

use crate::error::OpError;
use crate::functions::recurrent::gate;
use crate::meta::{Meta, arity, require_float, require_same_dtype};
use crate::tensor::Tensor;

/// The time steps in the order of a walk.
pub(crate) fn walk(steps: usize, reverse: bool) -> impl DoubleEndedIterator<Item = usize> {
    (0..steps).map(move |place| if reverse { steps - 1 - place } else { place })
}

/// The gradient of the weights of the state, Σ dᵀ h over all steps, h the state before each: one product over all steps
/// but the first of the walk, and one for that. d: (time, batch, gates · hidden); y: (time, batch, …) with the state as its
/// part `state`; first: (batch, hidden) → (gates · hidden, hidden).
pub(crate) fn of_weights(d: &Tensor, y: &Tensor, first: &Tensor, state: usize, reverse: bool) -> Tensor {
    let (steps, batch, width, hidden) = (d.size(0), d.size(1), d.size(2), first.size(1));
    if steps == 0 {
        return Tensor::zeros([width, hidden], d.dtype());
    }
    let (start, later, earlier) = match reverse {
        false => (0, d.narrow(0, 1, steps - 1), y.narrow(0, 0, steps - 1)),
        true => (-1, d.narrow(0, 0, steps - 1), y.narrow(0, 1, steps - 1)),
    };
    let rows = (steps - 1) * batch;
    let before = gate(&earlier, state, hidden).reshape([rows, hidden]);
    later.reshape([rows, width]).t().matmul(&before) + d.select(0, start).t().matmul(first)
}

/// The rows of a walk's steps in the order of time.
pub(crate) fn in_time(mut rows: Vec<Tensor>, reverse: bool) -> Tensor {
    if reverse {
        rows.reverse();
    }
    Tensor::stack(&rows, 0)
}

/// The gradients of a walk back through time, in the order of time, and then others, in one vector.
pub(crate) fn joined(mut rows: Vec<Tensor>, reverse: bool, others: &[Tensor]) -> Tensor {
    if !reverse {
        rows.reverse();
    }
    let flat: Vec<Tensor> = rows.iter().chain(others).map(|x| x.flatten(0, -1)).collect();
    Tensor::concat(&flat, 0)
}

/// How many numbers of each hidden unit there are.
pub(crate) struct PerUnit {
    /// In a row of the result over time.
    pub kept: usize,
    /// In the weights of the state.
    pub gates: usize,
    /// First states and cells whose gradients stand at the end.
    pub states: usize,
}

/// The meta of the gradients of a net with gates: y and dy: (time, batch, kept · hidden), u: (gates · hidden, hidden), a state:
/// (batch, hidden) → ((time · 4 + states) · batch · hidden).
pub(crate) fn infer_grad(
    op: &'static str,
    x: &[&Meta],
    n: &PerUnit,
    hint: &'static str,
) -> Result<Meta, OpError> {
    let [y, u, state, dy] = arity(op, x)?;
    require_float(op, y)?;
    [u, state, dy].iter().try_for_each(|other| require_same_dtype(op, y, other))?;
    let misfit =
        |other: &Meta| OpError::Shapes { op, left: y.shape.clone(), right: other.shape.clone(), hint };
    match (&y.shape[..], &u.shape[..], &state.shape[..]) {
        (&[steps, batch, kept], &[gates, hidden], &[batch2, hidden2])
            if kept == n.kept * hidden
                && gates == n.gates * hidden
                && (batch, hidden) == (batch2, hidden2) =>
        {
            match dy.shape == y.shape {
                true => Ok(y.with_shape([(steps * 4 + n.states) * batch * hidden])),
                false => Err(misfit(dy)),
            }
        }
        _ => Err(misfit(u)),
    }
}
