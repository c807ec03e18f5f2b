//! `mul`: y = a · b. On integers it wraps.

use crate::operand::{Operand, with_operand};
use crate::ops::elementwise::{Binary, Domain, binary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

binary_op! {
    /// y = a · b.
    Mul
}

impl Binary for Mul {
    const NAME: &'static str = "mul";
    const DOMAIN: Domain = Domain::Number;
    const F32: Option<fn(&[f32], &[f32], &mut [f32])> = Some(thalweg_kernels::stream::arithmetic::mul);
    const KEEP: Keep = Keep::input(0).and(Keep::input(1));

    fn float(a: f64, b: f64) -> f64 {
        a * b
    }

    fn int(a: i64, b: i64) -> Option<i64> {
        Some(a.wrapping_mul(b))
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        g.pair(|| g.dy() * g.x(1), || g.dy() * g.x(0))
    }
}

impl Tensor {
    /// a · b, where b is a tensor or a number.
    #[track_caller]
    pub fn mul<'a>(&self, other: impl Into<Operand<'a>>) -> Tensor {
        with_operand(Mul, self, other.into())
    }
}
