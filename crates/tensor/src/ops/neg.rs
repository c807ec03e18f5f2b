//! `neg`: y = −x.

use crate::apply::run;
use crate::ops::elementwise::{Domain, Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// y = −x.
    Neg
}

impl Unary for Neg {
    const NAME: &'static str = "neg";
    const DOMAIN: Domain = Domain::Number;
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::stream::arithmetic::neg);
    const KEEP: Keep = Keep::NOTHING;

    fn float(x: f64) -> f64 {
        -x
    }

    fn int(x: i64) -> i64 {
        x.wrapping_neg()
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(-g.dy())
    }
}

impl Tensor {
    /// −x.
    #[track_caller]
    pub fn neg(&self) -> Tensor {
        run(Neg, &[self])
    }
}
