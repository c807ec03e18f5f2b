//! `logaddexp`: y = log(eᵃ + eᵇ), without overflow.

use crate::operand::{Operand, with_float_operand};
use crate::ops::elementwise::{Binary, binary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;
use std::f64::consts::LN_2;

binary_op! {
    /// log(eᵃ + eᵇ).
    Logaddexp
}

impl Binary for Logaddexp {
    const NAME: &'static str = "logaddexp";
    const KEEP: Keep = Keep::input(0).and(Keep::input(1));

    fn float(a: f64, b: f64) -> f64 {
        let larger = if a > b || a.is_nan() { a } else { b };
        // Equal infinities have no difference.
        if a == b { larger + LN_2 } else { larger + (-(a - b).abs()).exp().ln_1p() }
    }

    fn int(_a: i64, _b: i64) -> Option<i64> {
        unreachable!("the domain is floats")
    }

    /// da = dy · σ(a − b); equal infinities share.
    fn grad(g: &Vjp<'_>) -> Grad {
        let difference = g.x(0) - g.x(1);
        let weight = &difference.isnan().where_(0.0, &difference).sigmoid();
        g.pair(|| g.dy() * weight, || g.dy() * (1.0 - weight))
    }
}

impl Tensor {
    /// log(eᵃ + eᵇ), without overflow.
    #[track_caller]
    pub fn logaddexp<'a>(&self, other: impl Into<Operand<'a>>) -> Tensor {
        with_float_operand(Logaddexp, self, other.into())
    }
}
