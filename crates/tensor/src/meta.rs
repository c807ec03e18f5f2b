//! What is known of a tensor without its values.

use std::fmt;

use thalweg_core::{DType, Shape};

use crate::error::OpError;

/// Dtype and shape.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Meta {
    /// The type of the elements.
    pub dtype: DType,
    /// The sizes.
    pub shape: Shape,
}

impl Meta {
    /// From any description of a shape.
    pub fn new(dtype: DType, shape: impl Into<Shape>) -> Self {
        Self { dtype, shape: shape.into() }
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.numel()
    }

    /// Bytes of all elements.
    pub fn bytes(&self) -> usize {
        self.numel() * self.dtype.size()
    }

    /// The same dtype with another shape.
    pub fn with_shape(&self, shape: impl Into<Shape>) -> Self {
        Self { dtype: self.dtype, shape: shape.into() }
    }

    /// The same shape with another dtype.
    pub fn with_dtype(&self, dtype: DType) -> Self {
        Self { dtype, shape: self.shape.clone() }
    }
}

impl fmt::Debug for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.shape)
    }
}

impl fmt::Display for Meta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Exactly `N` operands.
pub fn arity<'a, const N: usize>(op: &'static str, x: &[&'a Meta]) -> Result<[&'a Meta; N], OpError> {
    <[&Meta; N]>::try_from(x).map_err(|_| OpError::Arity { op, want: N, got: x.len() })
}

/// A float operand.
pub fn require_float(op: &'static str, x: &Meta) -> Result<(), OpError> {
    if x.dtype.is_float() { Ok(()) } else { Err(OpError::DType { op, want: "a float", got: x.dtype }) }
}

/// An operand of any type but `bool`.
pub fn require_number(op: &'static str, x: &Meta) -> Result<(), OpError> {
    if x.dtype == DType::Bool { Err(OpError::DType { op, want: "a number", got: x.dtype }) } else { Ok(()) }
}

/// An operand that holds positions.
pub fn require_index(op: &'static str, x: &Meta) -> Result<(), OpError> {
    if x.dtype == DType::I64 {
        Ok(())
    } else {
        Err(OpError::DType { op, want: "i64 (an index)", got: x.dtype })
    }
}

/// Two operands of one dtype.
pub fn require_same_dtype(op: &'static str, a: &Meta, b: &Meta) -> Result<(), OpError> {
    if a.dtype == b.dtype { Ok(()) } else { Err(OpError::DTypes { op, left: a.dtype, right: b.dtype }) }
}

/// Two operands of one shape: primitives never broadcast by themselves.
pub fn require_same_shape(op: &'static str, a: &Meta, b: &Meta) -> Result<(), OpError> {
    if a.shape == b.shape {
        return Ok(());
    }
    let hint = "a primitive takes equal shapes; broadcast first";
    Err(OpError::Shapes { op, left: a.shape.clone(), right: b.shape.clone(), hint })
}
