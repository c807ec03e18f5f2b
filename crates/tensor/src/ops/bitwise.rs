//! `bitwise`: and, or, exclusive or of the bits of integers, or of truth values.

use thalweg_core::{DType, View, ViewMut};
use thalweg_kernels::stream::arithmetic::zip;

use crate::error::OpError;
use crate::meta::{Meta, arity, require_same_dtype, require_same_shape};
use crate::operand::{Operand, with_operand};
use crate::ops::elementwise::{blocks, through};
use crate::ops::primitive::{Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample, elementwise_shapes};
use crate::tensor::Tensor;

/// A function of two bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Gate {
    /// Both.
    And,
    /// At least one.
    Or,
    /// Exactly one.
    Xor,
}

/// A function of two bits on all bits of two elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Bitwise {
    /// The function.
    pub gate: Gate,
}

impl Primitive for Bitwise {
    const NAME: &'static str = "bitwise";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [a, b] = arity(Self::NAME, x)?;
        if a.dtype.is_float() {
            return Err(OpError::DType { op: Self::NAME, want: "an integer or bool", got: a.dtype });
        }
        require_same_dtype(Self::NAME, a, b)?;
        require_same_shape(Self::NAME, a, b)?;
        Ok(a.clone())
    }

    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    fn grad(&self, _g: &Vjp<'_>) -> Grad {
        Grad::None("bits have no derivative")
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        through::<i64, i64, 2>([x[0], x[1]], y, |[a, b], y| match self.gate {
            Gate::And => zip(a, b, y, |a, b| a & b),
            Gate::Or => zip(a, b, y, |a, b| a | b),
            Gate::Xor => zip(a, b, y, |a, b| a ^ b),
        });
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        if x[0].dtype() != DType::Bool {
            return false;
        }
        blocks::<bool, bool, 2>([x[0], x[1]], y.dense(), |[a, b], y| match self.gate {
            Gate::And => zip(a, b, y, |a, b| a & b),
            Gate::Or => zip(a, b, y, |a, b| a | b),
            Gate::Xor => zip(a, b, y, |a, b| a ^ b),
        });
        true
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn samples() -> Vec<Sample> {
        let mut samples = Vec::new();
        for gate in [Gate::And, Gate::Or, Gate::Xor] {
            let op = Bitwise { gate };
            samples.extend(
                elementwise_shapes().map(|s| Sample::new(op, [Draw::bool(s.clone()), Draw::bool(s)])),
            );
            samples.push(Sample::new(op, [Draw::int([2, 9], -9, 9), Draw::int([2, 9], -9, 9)]));
        }
        samples
    }
}

macro_rules! gates {
    ($($(#[$doc:meta])* $bitwise:ident, $(#[$logical_doc:meta])* $logical:ident, $Gate:ident;)*) => {
        impl Tensor {
            $($(#[$doc])*
            #[track_caller]
            pub fn $bitwise<'a>(&self, other: impl Into<Operand<'a>>) -> Tensor {
                with_operand(Bitwise { gate: Gate::$Gate }, self, other.into())
            }

            $(#[$logical_doc])*
            #[track_caller]
            pub fn $logical(&self, other: &Tensor) -> Tensor {
                let (a, b) = (self.to_dtype(DType::Bool), other.to_dtype(DType::Bool));
                with_operand(Bitwise { gate: Gate::$Gate }, &a, Operand::Tensor(&b))
            })*
        }
    };
}

gates! {
    /// The bits that are set in both; on `bool`, where both are true.
    bitwise_and,
    /// Where both are not zero.
    logical_and, And;
    /// The bits that are set in at least one; on `bool`, where at least one is true.
    bitwise_or,
    /// Where at least one is not zero.
    logical_or, Or;
    /// The bits that are set in exactly one; on `bool`, where exactly one is true.
    bitwise_xor,
    /// Where exactly one is not zero.
    logical_xor, Xor;
}

impl Tensor {
    /// Every bit flipped; on `bool`, not.
    #[track_caller]
    pub fn bitwise_not(&self) -> Tensor {
        if self.dtype() == DType::Bool { self.logical_not() } else { self.bitwise_xor(-1) }
    }
}
