//! `rsqrt`: y = 1 / √x, ±∞ at ±0, NaN below.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// 1 / √x.
    Rsqrt
}

impl Unary for Rsqrt {
    const NAME: &'static str = "rsqrt";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::rsqrt);
    const RANGE: (f64, f64) = (0.2, 3.0);
    const KEEP: Keep = Keep::OUTPUT;

    fn float(x: f64) -> f64 {
        1.0 / x.sqrt()
    }

    /// dx = −½ y³ dy.
    fn grad(g: &Vjp<'_>) -> Grad {
        let y = &g.y();
        Grad::one(g.dy() * (y.square() * y * -0.5))
    }
}

impl Tensor {
    /// 1 / √x.
    #[track_caller]
    pub fn rsqrt(&self) -> Tensor {
        run(Rsqrt, &[&self.as_float()])
    }
}
