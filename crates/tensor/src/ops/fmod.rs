//! `fmod`: y = a − b trunc(a / b), with the sign of a, as `%` in Rust and C. On integers, a zero divisor is refused.

use crate::operand::{Operand, with_operand};
use crate::ops::elementwise::{Binary, Domain, binary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

binary_op! {
    /// a − b trunc(a / b).
    Fmod
}

impl Binary for Fmod {
    const NAME: &'static str = "fmod";
    const DOMAIN: Domain = Domain::Number;
    const RANGES: [(f64, f64); 2] = [(-2.0, 2.0), (0.3, 2.5)];
    const KEEP: Keep = Keep::input(0).and(Keep::input(1)).and(Keep::OUTPUT);

    fn float(a: f64, b: f64) -> f64 {
        a % b
    }

    fn int(a: i64, b: i64) -> Option<i64> {
        if b == 0 { None } else { Some(a.wrapping_rem(b)) }
    }

    /// da = dy, db = −dy · trunc(a / b), where a − y is a multiple of b.
    fn grad(g: &Vjp<'_>) -> Grad {
        g.pair(|| g.dy().clone(), || -(g.dy() * ((g.x(0) - g.y()) / g.x(1)).round()))
    }
}

impl Tensor {
    /// The remainder of division with the sign of the dividend, as `%` in Rust and C.
    #[track_caller]
    pub fn fmod<'a>(&self, other: impl Into<Operand<'a>>) -> Tensor {
        with_operand(Fmod, self, other.into())
    }
}
