//! `gelu`: y = x Φ(x), Φ the normal distribution function; NaN at −∞, as in PyTorch.

use std::f64::consts::{FRAC_1_SQRT_2, FRAC_2_SQRT_PI};

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// x Φ(x), Φ the normal distribution function: the exact GELU.
    Gelu
}

impl Unary for Gelu {
    const NAME: &'static str = "gelu";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::gelu);
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        x * 0.5 * thalweg_kernels::math::special::erfc(-x * FRAC_1_SQRT_2)
    }

    fn body(x: &Tensor) -> Option<Tensor> {
        Some(x * ((x * -FRAC_1_SQRT_2).erfc() * 0.5))
    }

    /// dx = dy · (Φ(x) + x φ(x)), φ the normal density.
    fn grad(g: &Vjp<'_>) -> Grad {
        g.rounded_once(|x, dy| {
            let cdf = (x * -FRAC_1_SQRT_2).erfc() * 0.5;
            let pdf = (x.square() * -0.5).exp() * (0.5 * FRAC_1_SQRT_2 * FRAC_2_SQRT_PI);
            dy * (cdf + x * pdf)
        })
    }
}

impl Tensor {
    /// x Φ(x), Φ the normal distribution function: the exact GELU.
    #[track_caller]
    pub fn gelu(&self) -> Tensor {
        run(Gelu, &[&self.as_float()])
    }
}
