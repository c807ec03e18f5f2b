//! `maximum`: y = the larger of a and b, NaN where either is.

use crate::operand::{Operand, with_operand};
use crate::ops::elementwise::{Binary, Domain, binary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

binary_op! {
    /// The larger of a and b, NaN where either is.
    Maximum
}

impl Binary for Maximum {
    const NAME: &'static str = "maximum";
    const DOMAIN: Domain = Domain::Any;
    const F32: Option<fn(&[f32], &[f32], &mut [f32])> = Some(thalweg_kernels::stream::arithmetic::max);
    const KEEP: Keep = Keep::input(0).and(Keep::input(1));

    fn float(a: f64, b: f64) -> f64 {
        if a > b || a.is_nan() { a } else { b }
    }

    fn int(a: i64, b: i64) -> Option<i64> {
        Some(a.max(b))
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        let (a, b) = (g.x(0), g.x(1));
        g.pair(|| share(g.dy(), a, b, a.lt(b)), || share(g.dy(), a, b, b.lt(a)))
    }
}

/// All of `dy` to the operand that was taken, half at a tie, nothing where it `lost`.
pub(super) fn share(dy: &Tensor, a: &Tensor, b: &Tensor, lost: Tensor) -> Tensor {
    lost.where_(0.0, &a.eq(b).where_(&(dy * 0.5), dy))
}

impl Tensor {
    /// Elementwise the larger of two, NaN where either is. A tie shares the gradient.
    #[track_caller]
    pub fn maximum<'a>(&self, other: impl Into<Operand<'a>>) -> Tensor {
        with_operand(Maximum, self, other.into())
    }

    /// Elementwise the larger of two; a NaN loses against a number. A tie gives the gradient to `self`.
    #[track_caller]
    pub fn fmax<'a>(&self, other: impl Into<Operand<'a>>) -> Tensor {
        let other = other.into();
        self.ge(other).logical_or(&other.isnan()).where_(self, other)
    }
}
