//! `erfinv`: y with erf y = x; ±∞ at ±1, NaN outside.

use std::f64::consts::FRAC_2_SQRT_PI;

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// The inverse of erf; ±∞ at ±1, NaN outside.
    Erfinv
}

impl Unary for Erfinv {
    const NAME: &'static str = "erfinv";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::erfinv);
    const RANGE: (f64, f64) = (-0.85, 0.85);
    const KEEP: Keep = Keep::OUTPUT;

    fn float(x: f64) -> f64 {
        thalweg_kernels::math::special::erfinv(x)
    }

    /// dx = √π/2 e^(y²) dy.
    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() * (g.y().square().exp() / FRAC_2_SQRT_PI))
    }
}

impl Tensor {
    /// The inverse of erf; ±∞ at ±1, NaN outside.
    #[track_caller]
    pub fn erfinv(&self) -> Tensor {
        run(Erfinv, &[&self.as_float()])
    }
}
