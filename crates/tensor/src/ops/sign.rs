//! `sign`: y = −1, 0 or 1 by the sign of x; 0 at NaN, as in PyTorch.

use crate::apply::run;
use crate::ops::elementwise::{Domain, Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// −1, 0 or 1 by the sign of x; 0 at NaN.
    Sign
}

impl Unary for Sign {
    const NAME: &'static str = "sign";
    const DOMAIN: Domain = Domain::Number;
    const F32: Option<fn(&[f32], &mut [f32])> =
        Some(|x, y| thalweg_kernels::stream::arithmetic::map(x, y, sign));
    const KEEP: Keep = Keep::NOTHING;

    fn float(x: f64) -> f64 {
        f64::from(i8::from(x > 0.0) - i8::from(x < 0.0))
    }

    fn int(x: i64) -> i64 {
        x.signum()
    }

    fn grad(_g: &Vjp<'_>) -> Grad {
        Grad::zero(1)
    }
}

impl Tensor {
    /// −1, 0 or 1 by the sign of x; 0 at NaN.
    #[track_caller]
    pub fn sign(&self) -> Tensor {
        run(Sign, &[self])
    }
}

fn sign(x: f32) -> f32 {
    let positive = if x > 0.0 { 1.0 } else { 0.0 };
    if x < 0.0 { -1.0 } else { positive }
}
