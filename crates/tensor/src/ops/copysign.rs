//! `copysign`: y = |a| with the sign of b, which −0 and NaN have too.

use crate::operand::{Operand, with_float_operand};
use crate::ops::elementwise::{Binary, binary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

binary_op! {
    /// |a| with the sign of b.
    Copysign
}

impl Binary for Copysign {
    const NAME: &'static str = "copysign";
    const F32: Option<fn(&[f32], &[f32], &mut [f32])> =
        Some(|a, b, y| thalweg_kernels::stream::arithmetic::zip(a, b, y, f32::copysign));
    const RANGES: [(f64, f64); 2] = [(0.3, 2.0), (-2.0, -0.3)];
    const KEEP: Keep = Keep::input(0).and(Keep::input(1));

    fn float(a: f64, b: f64) -> f64 {
        a.copysign(b)
    }

    fn int(_a: i64, _b: i64) -> Option<i64> {
        unreachable!("the domain is floats")
    }

    /// da = ±dy, and 0 where a is 0; constant in b.
    fn grad(g: &Vjp<'_>) -> Grad {
        let da = g.want(0, || g.dy() * (g.x(0).sign() * g.x(1).ones_like().copysign(g.x(1))));
        Grad::Inputs(smallvec::smallvec![da, None])
    }
}

impl Tensor {
    /// |a| with the sign of b.
    #[track_caller]
    pub fn copysign<'a>(&self, other: impl Into<Operand<'a>>) -> Tensor {
        with_float_operand(Copysign, self, other.into())
    }

    /// Where the sign bit is set: negative numbers, −0, and NaN with that bit.
    #[track_caller]
    pub fn signbit(&self) -> Tensor {
        if self.dtype().is_float() { self.ones_like().copysign(self).lt(0) } else { self.lt(0) }
    }
}
