//! `sigmoid`: y = 1 / (1 + e⁻ˣ).

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// 1 / (1 + e⁻ˣ).
    Sigmoid
}

impl Unary for Sigmoid {
    const NAME: &'static str = "sigmoid";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::sigmoid);
    const KEEP: Keep = Keep::OUTPUT;

    fn float(x: f64) -> f64 {
        let e = (-x.abs()).exp();
        if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        let y = &g.y();
        Grad::one(g.dy() * (y * (1.0 - y)))
    }
}

impl Tensor {
    /// 1 / (1 + e⁻ˣ).
    #[track_caller]
    pub fn sigmoid(&self) -> Tensor {
        run(Sigmoid, &[&self.as_float()])
    }
}
