//! `log1p`: y = log(1 + x), accurate where x is small.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// log(1 + x), accurate where x is small.
    Log1p
}

impl Unary for Log1p {
    const NAME: &'static str = "log1p";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::log1p);
    const RANGE: (f64, f64) = (-0.8, 3.0);
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        x.ln_1p()
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() / (g.x(0) + 1.0))
    }
}

impl Tensor {
    /// log(1 + x), accurate where x is small.
    #[track_caller]
    pub fn log1p(&self) -> Tensor {
        run(Log1p, &[&self.as_float()])
    }
}
