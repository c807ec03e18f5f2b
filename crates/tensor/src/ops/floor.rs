//! `floor`: y = the largest whole number that is at most x.

use crate::apply::run;
use crate::ops::elementwise::{Domain, Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// The largest whole number that is at most x.
    Floor
}

impl Unary for Floor {
    const NAME: &'static str = "floor";
    const DOMAIN: Domain = Domain::Number;
    const F32: Option<fn(&[f32], &mut [f32])> =
        Some(|x, y| thalweg_kernels::stream::arithmetic::map(x, y, f32::floor));
    const KEEP: Keep = Keep::NOTHING;

    fn float(x: f64) -> f64 {
        x.floor()
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
    /// The largest whole number that is at most x.
    #[track_caller]
    pub fn floor(&self) -> Tensor {
        run(Floor, &[self])
    }
}
