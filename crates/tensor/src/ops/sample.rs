//! Sample calls of an op, from which its tests are generated.

use thalweg_core::Shape;

use crate::ops::Op;

/// One call: an op and how to draw its operands.
#[derive(Debug, Clone)]
pub struct Sample {
    /// The op with its attributes.
    pub op: Op,
    /// Its operands.
    pub inputs: Vec<Draw>,
}

impl Sample {
    /// An op and its operands.
    pub fn new(op: impl Into<Op>, inputs: impl IntoIterator<Item = Draw>) -> Self {
        Self { op: op.into(), inputs: inputs.into_iter().collect() }
    }
}

/// How to draw an operand.
#[derive(Debug, Clone)]
pub enum Draw {
    /// Uniform floats in a range where the op is smooth.
    Float {
        /// The sizes.
        shape: Shape,
        /// The lower end.
        lo: f64,
        /// The upper end.
        hi: f64,
    },
    /// Floats at least 0.25 apart, in random order: no ties.
    Distinct {
        /// The sizes.
        shape: Shape,
    },
    /// Whole numbers in `lo..hi`, as i64.
    Int {
        /// The sizes.
        shape: Shape,
        /// The smallest.
        lo: i64,
        /// One past the largest.
        hi: i64,
    },
    /// Random truth values.
    Bool {
        /// The sizes.
        shape: Shape,
    },
    /// A symmetric positive definite matrix.
    Definite {
        /// Rows and columns.
        n: usize,
    },
}

impl Draw {
    /// Uniform floats in `lo..hi`.
    pub fn float(shape: impl Into<Shape>, lo: f64, hi: f64) -> Self {
        Draw::Float { shape: shape.into(), lo, hi }
    }

    /// Uniform floats in `-2..2`.
    pub fn any(shape: impl Into<Shape>) -> Self {
        Self::float(shape, -2.0, 2.0)
    }

    /// Floats without ties.
    pub fn distinct(shape: impl Into<Shape>) -> Self {
        Draw::Distinct { shape: shape.into() }
    }

    /// Whole numbers in `lo..hi`.
    pub fn int(shape: impl Into<Shape>, lo: i64, hi: i64) -> Self {
        Draw::Int { shape: shape.into(), lo, hi }
    }

    /// Truth values.
    pub fn bool(shape: impl Into<Shape>) -> Self {
        Draw::Bool { shape: shape.into() }
    }

    /// A symmetric positive definite matrix.
    pub fn definite(n: usize) -> Self {
        Draw::Definite { n }
    }
}

/// The shapes that elementwise ops are tried on: ordinary, scalar, empty, size-1 axes, one long
/// enough for several SIMD registers and a tail.
pub fn elementwise_shapes() -> [Shape; 5] {
    [[2, 3].into(), ().into(), [2, 0, 3].into(), [1, 1].into(), [37].into()]
}

/// A function of one number, with each of some attributes, on every elementwise shape.
pub fn elementwise<A: Copy, O: Into<Op>>(
    attributes: &[A],
    op: impl Fn(A) -> O,
    lo: f64,
    hi: f64,
) -> Vec<Sample> {
    let on_shapes = |&a: &A| elementwise_shapes().map(|s| Sample::new(op(a), [Draw::float(s, lo, hi)]));
    attributes.iter().flat_map(on_shapes).collect()
}
