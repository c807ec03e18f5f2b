//! `trunc`: y = x without its fraction.

use crate::apply::run;
use crate::ops::elementwise::{Domain, Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// X without its fraction.
    Trunc
}

impl Unary for Trunc {
    const NAME: &'static str = "trunc";
    const DOMAIN: Domain = Domain::Number;
    const F32: Option<fn(&[f32], &mut [f32])> =
        Some(|x, y| thalweg_kernels::stream::arithmetic::map(x, y, f32::trunc));
    const KEEP: Keep = Keep::NOTHING;

    fn float(x: f64) -> f64 {
        x.trunc()
    }

    fn int(x: i64) -> i64 {
        x
    }

    /// Constant almost everywhere.
    fn grad(_g: &Vjp<'_>) -> Grad {
        Grad::zero(1)
    }
}

impl Tensor {
    /// X without its fraction.
    #[track_caller]
    pub fn trunc(&self) -> Tensor {
        run(Trunc, &[self])
    }
}
