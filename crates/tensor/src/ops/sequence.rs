//! What the ops over a whole sequence have in common.

use crate::functions::recurrent::gate;
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
