//! `softplus`: y = log(1 + eˣ), without overflow.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// log(1 + eˣ): a smooth relu.
    Softplus
}

impl Unary for Softplus {
    const NAME: &'static str = "softplus";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::softplus);
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        if x.is_nan() { x } else { x.max(0.0) + (-x.abs()).exp().ln_1p() }
    }

    fn body(x: &Tensor) -> Option<Tensor> {
        Some(x.logaddexp(0.0))
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() * g.x(0).sigmoid())
    }
}

impl Tensor {
    /// log(1 + eˣ): a smooth relu.
    #[track_caller]
    pub fn softplus(&self) -> Tensor {
        run(Softplus, &[&self.as_float()])
    }
}
