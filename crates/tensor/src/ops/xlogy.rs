//! `xlogy`: y = a log b, and 0 where a is, unless b is NaN.

use crate::operand::{Operand, with_float_operand};
use crate::ops::elementwise::{Binary, binary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

binary_op! {
    /// a log b, and 0 where a is.
    Xlogy
}

impl Binary for Xlogy {
    const NAME: &'static str = "xlogy";
    const F32: Option<fn(&[f32], &[f32], &mut [f32])> = Some(xlogy);
    const RANGES: [(f64, f64); 2] = [(0.2, 2.0), (0.2, 2.5)];
    const KEEP: Keep = Keep::input(0).and(Keep::input(1));

    fn float(a: f64, b: f64) -> f64 {
        if a == 0.0 && !b.is_nan() { 0.0 } else { a * b.ln() }
    }

    fn int(_a: i64, _b: i64) -> Option<i64> {
        unreachable!("the domain is floats")
    }

    /// da = dy · log b, 0 where y is 0 by definition; db = dy · a / b.
    fn grad(g: &Vjp<'_>) -> Grad {
        let (dy, a, b) = (g.dy(), g.x(0), g.x(1));
        let da = || a.eq(0.0).logical_and(&b.le(0.0)).where_(0.0, &(dy * b.log()));
        g.pair(da, || dy * (a / b))
    }
}

fn xlogy(a: &[f32], b: &[f32], y: &mut [f32]) {
    thalweg_kernels::math::log(b, y);
    for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
        *y = if *a == 0.0 && !b.is_nan() { 0.0 } else { a * *y };
    }
}

impl Tensor {
    /// a log b, and 0 where a is 0: what entropies need.
    #[track_caller]
    pub fn xlogy<'a>(&self, other: impl Into<Operand<'a>>) -> Tensor {
        with_float_operand(Xlogy, self, other.into())
    }
}
