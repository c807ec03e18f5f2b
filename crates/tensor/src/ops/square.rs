//! `square`: y = x².

use crate::apply::run;
use crate::ops::elementwise::{Domain, Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// x².
    Square
}

impl Unary for Square {
    const NAME: &'static str = "square";
    const DOMAIN: Domain = Domain::Number;
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::stream::arithmetic::square);
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        x * x
    }

    fn int(x: i64) -> i64 {
        x.wrapping_mul(x)
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() * (g.x(0) * 2.0))
    }
}

impl Tensor {
    /// x².
    #[track_caller]
    pub fn square(&self) -> Tensor {
        run(Square, &[self])
    }
}
