//! `exp`: y = eˣ.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// y = eˣ.
    Exp
}

impl Unary for Exp {
    const NAME: &'static str = "exp";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::exp);
    const KEEP: Keep = Keep::OUTPUT;

    fn float(x: f64) -> f64 {
        x.exp()
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() * &g.y())
    }
}

impl Tensor {
    /// eˣ.
    #[track_caller]
    pub fn exp(&self) -> Tensor {
        run(Exp, &[&self.as_float()])
    }
}
