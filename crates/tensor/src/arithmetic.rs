//! `+ - * / %` and unary `-` on tensors and numbers, with broadcasting and promotion.
//!
//! Operators take references or values. A value on the left gives its memory to the result when
//! nobody else sees it.

use crate::apply::{run, run_owned};
use crate::error::{InOp, or_fail};
use crate::ops::{Add, Div, Mul, Neg, Op, Sub};
use crate::scalar::Scalar;
use crate::tensor::Tensor;

/// Brings two tensors to one dtype and one shape and applies an op.
#[track_caller]
pub(crate) fn binary(op: impl Into<Op>, a: &Tensor, b: &Tensor) -> Tensor {
    let op = op.into();
    if a.meta() == b.meta() {
        return run(op, &[a, b]);
    }
    let shape = or_fail(a.shape().broadcast(b.shape()).in_op(op.name()));
    let dtype = a.dtype().promote(b.dtype());
    run(op, &[&a.to_dtype(dtype).broadcast_to(&shape), &b.to_dtype(dtype).broadcast_to(&shape)])
}

/// A tensor and a number, in this order.
#[track_caller]
pub(crate) fn with_scalar(op: impl Into<Op>, a: &Tensor, b: Scalar) -> Tensor {
    let dtype = b.dtype_with(a.dtype());
    run(op, &[&a.to_dtype(dtype), &b.spread(dtype, a.shape())])
}

/// A number and a tensor, in this order.
#[track_caller]
pub(crate) fn scalar_with(op: impl Into<Op>, a: Scalar, b: &Tensor) -> Tensor {
    let dtype = a.dtype_with(b.dtype());
    run(op, &[&a.spread(dtype, b.shape()), &b.to_dtype(dtype)])
}

/// Like [`binary`], with the left operand's memory up for reuse.
#[track_caller]
fn binary_owned(op: impl Into<Op>, a: Tensor, b: &Tensor) -> Tensor {
    if a.meta() == b.meta() { run_owned(op, a, Some(b)) } else { binary(op, &a, b) }
}

#[track_caller]
fn with_scalar_owned(op: impl Into<Op>, a: Tensor, b: Scalar) -> Tensor {
    let dtype = b.dtype_with(a.dtype());
    if dtype != a.dtype() {
        return with_scalar(op, &a, b);
    }
    let b = b.spread(dtype, a.shape());
    run_owned(op, a, Some(&b))
}

macro_rules! operator {
    ($Trait:ident, $method:ident, $op:ident, |$t:ident| $prepare:expr) => {
        impl std::ops::$Trait<&Tensor> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                let prepare = |$t: &Tensor| $prepare;
                binary($op, &prepare(self), &prepare(other))
            }
        }
        impl std::ops::$Trait<&Tensor> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                if self.dtype().is_float() { binary_owned($op, self, other) } else { std::ops::$Trait::$method(&self, other) }
            }
        }
        impl std::ops::$Trait<Tensor> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                std::ops::$Trait::$method(self, &other)
            }
        }
        impl std::ops::$Trait<Tensor> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                std::ops::$Trait::$method(self, &other)
            }
        }
        operator!(scalars $Trait, $method, $op, |$t| $prepare; f64, i64);
    };
    (scalars $Trait:ident, $method:ident, $op:ident, |$t:ident| $prepare:expr; $($number:ty),*) => {$(
        impl std::ops::$Trait<$number> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: $number) -> Tensor {
                let prepare = |$t: &Tensor| $prepare;
                with_scalar($op, &prepare(self), other.into())
            }
        }
        impl std::ops::$Trait<$number> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: $number) -> Tensor {
                if self.dtype().is_float() { with_scalar_owned($op, self, other.into()) } else { std::ops::$Trait::$method(&self, other) }
            }
        }
        impl std::ops::$Trait<&Tensor> for $number {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                let prepare = |$t: &Tensor| $prepare;
                scalar_with($op, self.into(), &prepare(other))
            }
        }
        impl std::ops::$Trait<Tensor> for $number {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: Tensor) -> Tensor {
                std::ops::$Trait::$method(self, &other)
            }
        }
    )*};
}

operator!(Add, add, Add, |t| t.clone());
operator!(Sub, sub, Sub, |t| t.clone());
operator!(Mul, mul, Mul, |t| t.clone());
operator!(Div, div, Div, |t| t.as_float());

impl std::ops::Neg for &Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        run(Neg, &[self])
    }
}

impl std::ops::Neg for Tensor {
    type Output = Tensor;
    #[track_caller]
    fn neg(self) -> Tensor {
        run_owned(Neg, self, None)
    }
}
