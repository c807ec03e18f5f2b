//! `minimum`: y = the smaller of a and b, NaN where either is.

use crate::operand::{Operand, with_operand};
use crate::ops::elementwise::{Binary, Domain, binary_op};
use crate::ops::maximum::share;
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

binary_op! {
    /// The smaller of a and b, NaN where either is.
    Minimum
}

impl Binary for Minimum {
    const NAME: &'static str = "minimum";
    const DOMAIN: Domain = Domain::Any;
    const F32: Option<fn(&[f32], &[f32], &mut [f32])> = Some(thalweg_kernels::stream::arithmetic::min);
    const KEEP: Keep = Keep::input(0).and(Keep::input(1));

    fn float(a: f64, b: f64) -> f64 {
        if a < b || a.is_nan() { a } else { b }
    }

    fn int(a: i64, b: i64) -> Option<i64> {
        Some(a.min(b))
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        let (a, b) = (g.x(0), g.x(1));
        g.pair(|| share(g.dy(), a, b, a.gt(b)), || share(g.dy(), a, b, b.gt(a)))
    }
}

impl Tensor {
    /// Elementwise the smaller of two, NaN where either is. A tie shares the gradient.
    #[track_caller]
    pub fn minimum<'a>(&self, other: impl Into<Operand<'a>>) -> Tensor {
        with_operand(Minimum, self, other.into())
    }

    /// Elementwise the smaller of two; a NaN loses against a number. A tie gives the gradient to `self`.
    #[track_caller]
    pub fn fmin<'a>(&self, other: impl Into<Operand<'a>>) -> Tensor {
        let other = other.into();
        self.le(other).logical_or(&other.isnan()).where_(self, other)
    }
}
