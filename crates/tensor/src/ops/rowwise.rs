//! What ops over the rows of the last axis have in common.

use thalweg_core::{Element, Shape, View, ViewMut, with_dtype};

use crate::error::OpError;
use crate::meta::Meta;
use crate::tensor::Tensor;

/// The elements in row-major order as f64.
pub(crate) fn widened(x: View<'_>) -> Vec<f64> {
    with_dtype!(x.dtype(), T => x.iter::<T>().map(|v| v.to_f64()).collect())
}

/// Fills a result from f64. Reference kernels compute between [`widened`] and this, so that they are
/// compiled once and not once per dtype.
pub(crate) fn narrow_into(values: &[f64], y: &mut ViewMut<'_>) {
    with_dtype!(y.dtype(), T => {
        y.dense::<T>().iter_mut().zip(values).for_each(|(y, &v)| *y = T::from_f64(v));
    });
}

/// The reference: calls `f` on each row of operands that all have the shape of the result.
pub(crate) fn eval_rows<const N: usize>(
    x: [View<'_>; N],
    y: &mut ViewMut<'_>,
    f: impl Fn([&[f64]; N], &mut [f64]),
) {
    let cols = y.shape().last().copied().unwrap_or(1);
    if y.shape().numel() == 0 {
        return;
    }
    let x = x.map(widened);
    let mut values = vec![0.0; y.shape().numel()];
    for (i, row) in values.chunks_exact_mut(cols).enumerate() {
        f(std::array::from_fn(|k| &x[k][i * cols..(i + 1) * cols]), row);
    }
    narrow_into(&values, y);
}

/// An operand with at least one axis.
pub(crate) fn require_rows(op: &'static str, x: &Meta) -> Result<usize, OpError> {
    let none = || OpError::Rank { op, want: "at least 1", shape: Shape::scalar() };
    x.shape.last().copied().ok_or_else(none)
}

/// Runs `f` with one axis as the last.
#[track_caller]
pub(crate) fn along_last(x: &Tensor, axis: usize, f: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
    match x.rank() {
        0 => f(&x.reshape(1)).reshape(()),
        rank if axis + 1 == rank => f(x),
        _ => f(&x.movedim(axis as isize, -1)).movedim(-1, axis as isize),
    }
}
