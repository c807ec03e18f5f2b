//! `round`: y = the nearest whole number, the even one of two.

use crate::apply::run;
use crate::ops::elementwise::{Domain, Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// The nearest whole number, the even one of two.
    Round
}

impl Unary for Round {
    const NAME: &'static str = "round";
    const DOMAIN: Domain = Domain::Number;
    const F32: Option<fn(&[f32], &mut [f32])> =
        Some(|x, y| thalweg_kernels::stream::arithmetic::map(x, y, f32::round_ties_even));
    const KEEP: Keep = Keep::NOTHING;

    fn float(x: f64) -> f64 {
        x.round_ties_even()
    }

    fn int(x: i64) -> i64 {
        x
    }

    /// Constant almost everywhere.
    fn grad(_g: &Vjp<'_>) -> Grad {
        Grad::zero(1)
    }
}

impl Tensor {
    /// The nearest whole number, the even one of two.
    #[track_caller]
    pub fn round(&self) -> Tensor {
        run(Round, &[self])
    }
}
