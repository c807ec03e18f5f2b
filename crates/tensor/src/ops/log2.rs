//! `log2`: y = log₂ x, −∞ at 0, NaN below.

use std::f64::consts::LN_2;

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// The logarithm to base 2.
    Log2
}

impl Unary for Log2 {
    const NAME: &'static str = "log2";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::log2);
    const RANGE: (f64, f64) = (0.1, 3.0);
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        x.log2()
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() / (g.x(0) * LN_2))
    }
}

impl Tensor {
    /// The logarithm to base 2.
    #[track_caller]
    pub fn log2(&self) -> Tensor {
        run(Log2, &[&self.as_float()])
    }
}
