//! `floor_divide`: y = ⌊a / b⌋. On integers, a zero divisor is refused.

use crate::operand::{Operand, with_operand};
use crate::ops::elementwise::{Binary, Domain, binary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

binary_op! {
    /// ⌊a / b⌋.
    FloorDivide
}

impl Binary for FloorDivide {
    const NAME: &'static str = "floor_divide";
    const DOMAIN: Domain = Domain::Number;
    const RANGES: [(f64, f64); 2] = [(-2.0, 2.0), (0.3, 2.5)];
    const KEEP: Keep = Keep::NOTHING;

    fn float(a: f64, b: f64) -> f64 {
        if b == 0.0 {
            return a / b;
        }
        // a less its remainder is a multiple of b, so the quotient is whole but for its rounding.
        let r = a % b;
        let q = (a - r) / b;
        let q = if r != 0.0 && (r < 0.0) != (b < 0.0) { q - 1.0 } else { q };
        if q == 0.0 { 0f64.copysign(a / b) } else { q.round_ties_even() }
    }

    fn int(a: i64, b: i64) -> Option<i64> {
        let q = a.checked_rem(b).map(|r| (r, a.wrapping_div(b)));
        match q {
            Some((r, q)) if r != 0 && (r < 0) != (b < 0) => Some(q - 1),
            Some((_, q)) => Some(q),
            None if b == 0 => None,
            None => Some(a.wrapping_neg()),
        }
    }

    /// Constant almost everywhere.
    fn grad(_g: &Vjp<'_>) -> Grad {
        Grad::zero(2)
    }
}

impl Tensor {
    /// ⌊a / b⌋: rounds down, also below 0.
    #[track_caller]
    pub fn floor_divide<'a>(&self, other: impl Into<Operand<'a>>) -> Tensor {
        with_operand(FloorDivide, self, other.into())
    }
}
