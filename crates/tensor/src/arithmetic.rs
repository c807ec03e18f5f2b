//! `+ - * / %` and unary `-` on tensors and numbers, with broadcasting and promotion.
//!
//! Operators take references or values. A value on the left gives its memory to the result when
//! nobody else sees it.

use crate::apply::{Side, run, run_owned, run_with_number};
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
    if dtype == a.dtype() {
        return run_with_number(op.into(), a, &b.tensor(dtype), Side::Right);
    }
    run_with_number(op.into(), &a.to_dtype(dtype), &b.tensor(dtype), Side::Right)
}

/// A number and a tensor, in this order.
#[track_caller]
pub(crate) fn scalar_with(op: impl Into<Op>, a: Scalar, b: &Tensor) -> Tensor {
    let dtype = a.dtype_with(b.dtype());
    if dtype == b.dtype() {
        return run_with_number(op.into(), b, &a.tensor(dtype), Side::Left);
    }
    run_with_number(op.into(), &b.to_dtype(dtype), &a.tensor(dtype), Side::Left)
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

/// `$Trait` for every mix of owned and borrowed tensors and numbers. `$floats` says that integers
/// become floats first, as division needs.
macro_rules! operator {
    ($Trait:ident, $method:ident, floats: $floats:literal) => {
        impl std::ops::$Trait<&Tensor> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                if $floats && !(self.dtype().is_float() && other.dtype().is_float()) {
                    return binary($Trait, &self.as_float(), &other.as_float());
                }
                binary($Trait, self, other)
            }
        }
        impl std::ops::$Trait<&Tensor> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                if !self.dtype().is_float() {
                    return std::ops::$Trait::$method(&self, other);
                }
                binary_owned($Trait, self, other)
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
        operator!(numbers $Trait, $method, $floats; f64, i64);
    };
    (numbers $Trait:ident, $method:ident, $floats:literal; $($number:ty),*) => {$(
        impl std::ops::$Trait<$number> for &Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: $number) -> Tensor {
                if $floats && !self.dtype().is_float() {
                    return with_scalar($Trait, &self.as_float(), other.into());
                }
                with_scalar($Trait, self, other.into())
            }
        }
        impl std::ops::$Trait<$number> for Tensor {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: $number) -> Tensor {
                if !self.dtype().is_float() {
                    return std::ops::$Trait::$method(&self, other);
                }
                with_scalar_owned($Trait, self, other.into())
            }
        }
        impl std::ops::$Trait<&Tensor> for $number {
            type Output = Tensor;
            #[track_caller]
            fn $method(self, other: &Tensor) -> Tensor {
                if $floats && !other.dtype().is_float() {
                    return scalar_with($Trait, self.into(), &other.as_float());
                }
                scalar_with($Trait, self.into(), other)
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

// The ops bear the names of the operator traits.
operator!(Add, add, floats: false);
operator!(Sub, sub, floats: false);
operator!(Mul, mul, floats: false);
operator!(Div, div, floats: true);

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
