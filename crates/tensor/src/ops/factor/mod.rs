//! Factorisations of small dense matrices in f64, and what the linear algebra ops have in common.
//!
//! Plain loops over row-major slices: the ops give each matrix of a batch to one of these functions. They
//! are meant for the sizes of covariances and preconditioners, not for systems of thousands of unknowns.

pub(crate) mod lu;
pub(crate) mod orthogonal;
pub(crate) mod singular;
pub(crate) mod symmetric;
pub(crate) mod triangular;

use thalweg_core::{Element, Shape, View, ViewMut, with_dtype};

use crate::error::OpError;
use crate::meta::{Meta, require_float};
use crate::tensor::Tensor;

/// Rows and columns of a float operand whose last two axes are matrices.
pub(crate) fn require_matrix(op: &'static str, x: &Meta) -> Result<(usize, usize), OpError> {
    require_float(op, x)?;
    match *x.shape {
        [.., rows, cols] => Ok((rows, cols)),
        _ => Err(OpError::Rank { op, want: "at least 2", shape: x.shape.clone() }),
    }
}

/// The size of a float operand whose last two axes are square matrices.
pub(crate) fn require_square(op: &'static str, x: &Meta) -> Result<usize, OpError> {
    let (rows, cols) = require_matrix(op, x)?;
    if rows != cols {
        let hint = "the last two axes must be equal";
        return Err(OpError::Shapes { op, left: x.shape.clone(), right: [cols, cols].into(), hint });
    }
    Ok(rows)
}

/// The axes before the matrix.
pub(crate) fn batch(shape: &Shape) -> Shape {
    shape[..shape.rank() - 2].into()
}

/// The axes of `x` before the matrix, followed by `matrix`.
pub(crate) fn with_matrix(x: &Meta, matrix: &[usize]) -> Meta {
    x.with_shape(batch(&x.shape).iter().chain(matrix).copied().collect::<Shape>())
}

/// Fills the result, one matrix of each operand after the other: `f` gets the operands' matrices in f64
/// and returns the result's.
pub(crate) fn each<const N: usize>(
    x: [View<'_>; N],
    y: &mut ViewMut<'_>,
    f: impl Fn([&[f64]; N]) -> Result<Vec<f64>, OpError>,
) -> Result<(), OpError> {
    let values = x.map(to_doubles);
    let sizes = x.map(|x| x.shape()[x.shape().rank() - 2..].iter().product::<usize>());
    let mut results = Vec::with_capacity(y.shape().numel());
    for i in 0..batch(x[0].shape()).numel() {
        results.extend(f(std::array::from_fn(|k| &values[k][i * sizes[k]..][..sizes[k]]))?);
    }
    from_doubles(&results, y);
    Ok(())
}

fn to_doubles(x: View<'_>) -> Vec<f64> {
    with_dtype!(x.dtype(), T => x.iter::<T>().map(Element::to_f64).collect())
}

fn from_doubles(x: &[f64], y: &mut ViewMut<'_>) {
    with_dtype!(y.dtype(), T => y.dense::<T>().iter_mut().zip(x).for_each(|(y, &v)| *y = T::from_f64(v)));
}

/// (A + Aᵀ) / 2, row-major. x: (n, n).
pub(crate) fn symmetric_part(x: &[f64], n: usize) -> Vec<f64> {
    (0..n * n).map(|i| 0.5 * (x[i] + x[i % n * n + i / n])).collect()
}

impl Tensor {
    /// The identity in the last two axes.
    pub(crate) fn eye_like(&self) -> Tensor {
        Tensor::eye(self.size(-1), self.dtype())
    }

    /// (A + Aᵀ) / 2 of the last two axes.
    pub(crate) fn symmetric_part(&self) -> Tensor {
        (self + self.t()) * 0.5
    }
}
