//! `log10`: y = log₁₀ x, −∞ at 0, NaN below.

use std::f64::consts::LN_10;

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// The logarithm to base 10.
    Log10
}

impl Unary for Log10 {
    const NAME: &'static str = "log10";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::log10);
    const RANGE: (f64, f64) = (0.1, 3.0);
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        x.log10()
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() / (g.x(0) * LN_10))
    }
}

impl Tensor {
    /// The logarithm to base 10.
    #[track_caller]
    pub fn log10(&self) -> Tensor {
        run(Log10, &[&self.as_float()])
    }
}
