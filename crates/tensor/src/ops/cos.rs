//! `cos`: y = cos x.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// cos x.
    Cos
}

impl Unary for Cos {
    const NAME: &'static str = "cos";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::cos);
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        x.cos()
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(-(g.dy() * g.x(0).sin()))
    }
}

impl Tensor {
    /// cos x.
    #[track_caller]
    pub fn cos(&self) -> Tensor {
        run(Cos, &[&self.as_float()])
    }
}
