//! `hypot`: y = √(a² + b²), without overflow; ∞ where either is, even beside NaN.

use crate::operand::{Operand, with_float_operand};
use crate::ops::elementwise::{Binary, binary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

binary_op! {
    /// √(a² + b²).
    Hypot
}

impl Binary for Hypot {
    const NAME: &'static str = "hypot";
    const F32: Option<fn(&[f32], &[f32], &mut [f32])> =
        Some(|a, b, y| thalweg_kernels::stream::arithmetic::zip(a, b, y, hypot));
    const RANGES: [(f64, f64); 2] = [(0.3, 2.0), (0.3, 2.5)];
    const KEEP: Keep = Keep::input(0).and(Keep::input(1)).and(Keep::OUTPUT);

    fn float(a: f64, b: f64) -> f64 {
        a.hypot(b)
    }

    fn int(_a: i64, _b: i64) -> Option<i64> {
        unreachable!("the domain is floats")
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        let (dy, y) = (g.dy(), &g.y());
        g.pair(|| dy * (g.x(0) / y), || dy * (g.x(1) / y))
    }
}

/// No square of an f32 overflows in f64.
fn hypot(a: f32, b: f32) -> f32 {
    let root = (f64::from(a) * f64::from(a) + f64::from(b) * f64::from(b)).sqrt() as f32;
    if a.is_infinite() || b.is_infinite() { f32::INFINITY } else { root }
}

impl Tensor {
    /// √(a² + b²), without overflow. NaN is its gradient at the origin, where it has none.
    #[track_caller]
    pub fn hypot<'a>(&self, other: impl Into<Operand<'a>>) -> Tensor {
        with_float_operand(Hypot, self, other.into())
    }
}
