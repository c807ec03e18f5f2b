//! `reciprocal`: y = 1 / x.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// 1 / x.
    Reciprocal
}

impl Unary for Reciprocal {
    const NAME: &'static str = "reciprocal";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::recip);
    const RANGE: (f64, f64) = (0.3, 2.5);
    const KEEP: Keep = Keep::OUTPUT;

    fn float(x: f64) -> f64 {
        1.0 / x
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(-(g.dy() * g.y().square()))
    }
}

impl Tensor {
    /// 1 / x.
    #[track_caller]
    pub fn reciprocal(&self) -> Tensor {
        run(Reciprocal, &[&self.as_float()])
    }
}
