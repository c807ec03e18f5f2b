//! `erf`: y = erf x = 2/√π ∫₀ˣ e^(−t²) dt.

use std::f64::consts::FRAC_2_SQRT_PI;

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// The error function.
    Erf
}

impl Unary for Erf {
    const NAME: &'static str = "erf";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::erf);
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        thalweg_kernels::math::special::erf(x)
    }

    /// dx = 2/√π e^(−x²) dy.
    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() * ((-g.x(0).square()).exp() * FRAC_2_SQRT_PI))
    }
}

impl Tensor {
    /// The error function.
    #[track_caller]
    pub fn erf(&self) -> Tensor {
        run(Erf, &[&self.as_float()])
    }
}
