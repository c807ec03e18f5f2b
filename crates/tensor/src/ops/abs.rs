//! `abs`: y = |x|. Its gradient at 0 is 0.

use crate::apply::run;
use crate::ops::elementwise::{Domain, Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// |x|.
    Abs
}

impl Unary for Abs {
    const NAME: &'static str = "abs";
    const DOMAIN: Domain = Domain::Number;
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::stream::arithmetic::abs);
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        x.abs()
    }

    fn int(x: i64) -> i64 {
        x.wrapping_abs()
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() * g.x(0).sign())
    }
}

impl Tensor {
    /// |x|.
    #[track_caller]
    pub fn abs(&self) -> Tensor {
        run(Abs, &[self])
    }
}
