//! `exp2`: y = 2ˣ.

use std::f64::consts::LN_2;

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// 2ˣ.
    Exp2
}

impl Unary for Exp2 {
    const NAME: &'static str = "exp2";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::exp2);
    const KEEP: Keep = Keep::OUTPUT;

    fn float(x: f64) -> f64 {
        x.exp2()
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() * (g.y() * LN_2))
    }
}

impl Tensor {
    /// 2ˣ.
    #[track_caller]
    pub fn exp2(&self) -> Tensor {
        run(Exp2, &[&self.as_float()])
    }
}
