//! `sin`: y = sin x.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// sin x.
    Sin
}

impl Unary for Sin {
    const NAME: &'static str = "sin";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::sin);
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        x.sin()
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() * g.x(0).cos())
    }
}

impl Tensor {
    /// sin x.
    #[track_caller]
    pub fn sin(&self) -> Tensor {
        run(Sin, &[&self.as_float()])
    }
}
