//! `silu`: y = x σ(x), the sigmoid-weighted x; −0 at −∞.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// x / (1 + e⁻ˣ): SiLU, also known as swish.
    Silu
}

impl Unary for Silu {
    const NAME: &'static str = "silu";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::silu);
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        let e = (-x.abs()).exp();
        x.max(-1e6) * if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
    }

    fn body(x: &Tensor) -> Option<Tensor> {
        Some(x * x.sigmoid())
    }

    /// dx = dy · σ(x) (1 + x (1 − σ(x))).
    fn grad(g: &Vjp<'_>) -> Grad {
        let x = g.x(0);
        let s = &x.sigmoid();
        Grad::one(g.dy() * (s * ((1.0 - s) * x + 1.0)))
    }
}

impl Tensor {
    /// x / (1 + e⁻ˣ): SiLU, also known as swish.
    #[track_caller]
    pub fn silu(&self) -> Tensor {
        run(Silu, &[&self.as_float()])
    }
}
