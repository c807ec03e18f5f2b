//! `tanh`: y = tanh x.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// tanh x.
    Tanh
}

impl Unary for Tanh {
    const NAME: &'static str = "tanh";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::tanh);
    const KEEP: Keep = Keep::OUTPUT;

    fn float(x: f64) -> f64 {
        x.tanh()
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() * (1.0 - g.y().square()))
    }
}

impl Tensor {
    /// tanh x.
    #[track_caller]
    pub fn tanh(&self) -> Tensor {
        run(Tanh, &[&self.as_float()])
    }
}
