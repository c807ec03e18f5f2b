//! The other operand of a method: a tensor or a plain number.

use thalweg_core::{DType, Shape};

use crate::arithmetic::{binary, with_scalar};
use crate::ops::Op;
use crate::scalar::Scalar;
use crate::tensor::Tensor;

/// What a method takes beside its tensor: `x.maximum(&y)`, `x.maximum(0.5)`.
///
/// A number takes the dtype of the tensor it meets, unless it is of a higher category.
#[derive(Clone, Copy)]
pub enum Operand<'a> {
    /// A tensor.
    Tensor(&'a Tensor),
    /// A plain number.
    Number(Scalar),
}

impl Operand<'_> {
    /// The sizes; a number has no axes.
    pub(crate) fn shape(&self) -> Shape {
        match self {
            Operand::Tensor(t) => t.shape().clone(),
            Operand::Number(_) => Shape::scalar(),
        }
    }

    /// Where the operand is NaN.
    #[track_caller]
    pub(crate) fn isnan(&self) -> Tensor {
        match self {
            Operand::Tensor(t) => t.isnan(),
            Operand::Number(n) => Tensor::scalar(n.to_f64().is_nan()),
        }
    }

    /// The dtype when this operand meets a tensor of dtype `other`.
    pub(crate) fn dtype_with(&self, other: DType) -> DType {
        match self {
            Operand::Tensor(t) => t.dtype().promote(other),
            Operand::Number(n) => n.dtype_with(other),
        }
    }

    /// As a tensor of a dtype and a shape it broadcasts to.
    #[track_caller]
    pub(crate) fn spread(&self, dtype: DType, shape: &Shape) -> Tensor {
        match self {
            Operand::Tensor(t) => t.to_dtype(dtype).broadcast_to(shape),
            Operand::Number(n) => n.spread(dtype, shape),
        }
    }
}

/// Brings a tensor and an operand to one dtype and one shape and applies an op.
#[track_caller]
pub(crate) fn with_operand(op: impl Into<Op>, a: &Tensor, b: Operand<'_>) -> Tensor {
    match b {
        Operand::Tensor(b) => binary(op, a, b),
        Operand::Number(b) => with_scalar(op, a, b),
    }
}

/// [`with_operand`] for ops that are defined on floats: integers are converted first.
#[track_caller]
pub(crate) fn with_float_operand(op: impl Into<Op>, a: &Tensor, b: Operand<'_>) -> Tensor {
    match b {
        // Promotion comes first: an integer beside an f64 becomes an f64.
        Operand::Tensor(b) if a.dtype().promote(b.dtype()).is_float() => binary(op, a, b),
        Operand::Tensor(b) => binary(op, &a.as_float(), &b.as_float()),
        Operand::Number(b) => with_scalar(op, &a.as_float(), b),
    }
}

impl<'a> From<&'a Tensor> for Operand<'a> {
    fn from(t: &'a Tensor) -> Self {
        Operand::Tensor(t)
    }
}

macro_rules! from_number {
    ($($t:ty),*) => {$(
        impl From<$t> for Operand<'_> {
            fn from(x: $t) -> Self { Operand::Number(x.into()) }
        }
    )*};
}

from_number!(bool, i32, i64, usize, f32, f64, Scalar);
