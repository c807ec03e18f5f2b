//! `sub`: y = a − b. On integers it wraps.

use crate::operand::{Operand, with_operand};
use crate::ops::elementwise::{Binary, Domain, binary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

binary_op! {
    /// y = a − b.
    Sub
}

impl Binary for Sub {
    const NAME: &'static str = "sub";
    const DOMAIN: Domain = Domain::Number;
    const F32: Option<fn(&[f32], &[f32], &mut [f32])> = Some(thalweg_kernels::stream::arithmetic::sub);
    const KEEP: Keep = Keep::NOTHING;

    fn float(a: f64, b: f64) -> f64 {
        a - b
    }

    fn int(a: i64, b: i64) -> Option<i64> {
        Some(a.wrapping_sub(b))
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        g.pair(|| g.dy().clone(), || -g.dy())
    }
}

impl Tensor {
    /// a − b, where b is a tensor or a number.
    #[track_caller]
    pub fn sub<'a>(&self, other: impl Into<Operand<'a>>) -> Tensor {
        with_operand(Sub, self, other.into())
    }
}
