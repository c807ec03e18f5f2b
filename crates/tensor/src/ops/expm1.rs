//! `expm1`: y = eˣ − 1, accurate where x is small.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// eˣ − 1, accurate where x is small.
    Expm1
}

impl Unary for Expm1 {
    const NAME: &'static str = "expm1";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::expm1);
    const KEEP: Keep = Keep::OUTPUT;

    fn float(x: f64) -> f64 {
        x.exp_m1()
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() * (g.y() + 1.0))
    }
}

impl Tensor {
    /// eˣ − 1, accurate where x is small.
    #[track_caller]
    pub fn expm1(&self) -> Tensor {
        run(Expm1, &[&self.as_float()])
    }
}
