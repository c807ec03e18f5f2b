//! `ceil`: y = the smallest whole number that is at least x.

use crate::apply::run;
use crate::ops::elementwise::{Domain, Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// The smallest whole number that is at least x.
    Ceil
}

impl Unary for Ceil {
    const NAME: &'static str = "ceil";
    const DOMAIN: Domain = Domain::Number;
    const F32: Option<fn(&[f32], &mut [f32])> =
        Some(|x, y| thalweg_kernels::stream::arithmetic::map(x, y, f32::ceil));
    const KEEP: Keep = Keep::NOTHING;

    fn float(x: f64) -> f64 {
        x.ceil()
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
    /// The smallest whole number that is at least x.
    #[track_caller]
    pub fn ceil(&self) -> Tensor {
        run(Ceil, &[self])
    }
}
