//! `remainder`: y = a − b ⌊a / b⌋, with the sign of b, as `%` in Python. On integers, a zero divisor is refused.

use crate::operand::{Operand, with_operand};
use crate::ops::elementwise::{Binary, Domain, binary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

binary_op! {
    /// a − b ⌊a / b⌋.
    Remainder
}

impl Binary for Remainder {
    const NAME: &'static str = "remainder";
    const DOMAIN: Domain = Domain::Number;
    const RANGES: [(f64, f64); 2] = [(-2.0, 2.0), (0.3, 2.5)];
    const KEEP: Keep = Keep::input(0).and(Keep::input(1));

    fn float(a: f64, b: f64) -> f64 {
        let r = a % b;
        if r != 0.0 && (r < 0.0) != (b < 0.0) { r + b } else { r }
    }

    fn int(a: i64, b: i64) -> Option<i64> {
        if b == 0 {
            return None;
        }
        let r = a.wrapping_rem(b);
        Some(if r != 0 && (r < 0) != (b < 0) { r + b } else { r })
    }

    /// da = dy, db = −dy · ⌊a / b⌋.
    fn grad(g: &Vjp<'_>) -> Grad {
        g.pair(|| g.dy().clone(), || -(g.dy() * g.x(0).floor_divide(g.x(1))))
    }
}

impl Tensor {
    /// The remainder of division with the sign of the divisor, as `%` in Python.
    #[track_caller]
    pub fn remainder<'a>(&self, other: impl Into<Operand<'a>>) -> Tensor {
        with_operand(Remainder, self, other.into())
    }
}
