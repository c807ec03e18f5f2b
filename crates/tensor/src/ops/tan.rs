//! `tan`: y = tan x.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// tan x.
    Tan
}

impl Unary for Tan {
    const NAME: &'static str = "tan";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::tan);
    const RANGE: (f64, f64) = (-1.2, 1.2);
    const KEEP: Keep = Keep::OUTPUT;

    fn float(x: f64) -> f64 {
        x.tan()
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() * (g.y().square() + 1.0))
    }
}

impl Tensor {
    /// tan x.
    #[track_caller]
    pub fn tan(&self) -> Tensor {
        run(Tan, &[&self.as_float()])
    }
}
