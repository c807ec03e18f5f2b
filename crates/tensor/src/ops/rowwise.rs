//! What ops over the rows of the last axis have in common.

use thalweg_core::{Element, Shape, View, ViewMut, with_dtype};

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity, require_float, require_same_dtype, require_same_shape};
use crate::ops::Op;
use crate::ops::single::{self, Single};
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

/// Runs a kernel over rows of f32, given the operands, the length of a row and the result. `false`: not covered.
pub(crate) fn fast_rows(
    x: &[View<'_>],
    y: &mut ViewMut<'_>,
    kernel: impl FnOnce(&[Single<'_>], usize, &mut [f32]),
) -> bool {
    let cols = y.shape().last().copied().unwrap_or(1);
    let Some(x) = single::operands(x) else { return false };
    single::result(y, |y| kernel(&x, cols, y))
}

/// `N` float operands of one dtype and one shape with at least one axis, which the result shares.
pub(crate) fn infer_rows<const N: usize>(op: &'static str, x: &[&Meta]) -> Result<Meta, OpError> {
    let x: [&Meta; N] = arity(op, x)?;
    for other in x {
        require_float(op, other)?;
        require_same_dtype(op, x[0], other)?;
        require_same_shape(op, x[0], other)?;
    }
    require_rows(op, x[0])?;
    Ok(x[0].clone())
}

/// The shapes that ops over rows are tried on.
pub(crate) const ROW_SHAPES: [[usize; 2]; 5] = [[2, 5], [3, 1], [0, 4], [2, 0], [3, 37]];

/// An operand with at least one axis.
pub(crate) fn require_rows(op: &'static str, x: &Meta) -> Result<usize, OpError> {
    let none = || OpError::Rank { op, want: "at least 1", shape: Shape::scalar() };
    x.shape.last().copied().ok_or_else(none)
}

/// Applies an op with one axis as the last.
#[track_caller]
pub(crate) fn along_last(x: &Tensor, axis: usize, op: impl Into<Op>) -> Tensor {
    match x.rank() {
        0 => run(op, &[&x.reshape(1)]).reshape(()),
        rank if axis + 1 == rank => run(op, &[x]),
        _ => run(op, &[&x.movedim(axis as isize, -1)]).movedim(-1, axis as isize),
    }
}
