//! `mul`: y = a · b. On integers it wraps.

use crate::ops::elementwise::{Binary, Domain, binary_op};
use crate::ops::{Grad, Keep, Vjp};

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
