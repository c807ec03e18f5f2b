//! `erfc`: y = 1 − erf x, accurate in the tail.

use std::f64::consts::FRAC_2_SQRT_PI;

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// 1 − erf x, accurate in the tail.
    Erfc
}

impl Unary for Erfc {
    const NAME: &'static str = "erfc";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::erfc);
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        thalweg_kernels::math::special::erfc(x)
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() * ((-g.x(0).square()).exp() * -FRAC_2_SQRT_PI))
    }
}

impl Tensor {
    /// 1 − erf x, accurate in the tail.
    #[track_caller]
    pub fn erfc(&self) -> Tensor {
        run(Erfc, &[&self.as_float()])
    }
}
