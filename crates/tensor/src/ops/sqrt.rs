//! `sqrt`: y = √x, NaN below 0.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// √x.
    Sqrt
}

impl Unary for Sqrt {
    const NAME: &'static str = "sqrt";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::sqrt);
    const RANGE: (f64, f64) = (0.1, 3.0);
    const KEEP: Keep = Keep::OUTPUT;

    fn float(x: f64) -> f64 {
        x.sqrt()
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() / (g.y() * 2.0))
    }
}

impl Tensor {
    /// √x.
    #[track_caller]
    pub fn sqrt(&self) -> Tensor {
        run(Sqrt, &[&self.as_float()])
    }
}
