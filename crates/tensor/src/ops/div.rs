//! `div`: y = a / b on floats. `Tensor::div` converts integers first, as PyTorch does.

use crate::operand::{Operand, with_float_operand};
use crate::ops::elementwise::{Binary, binary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

binary_op! {
    /// y = a / b.
    Div
}

impl Binary for Div {
    const NAME: &'static str = "div";
    const F32: Option<fn(&[f32], &[f32], &mut [f32])> = Some(thalweg_kernels::stream::arithmetic::div);
    const RANGES: [(f64, f64); 2] = [(-2.0, 2.0), (0.3, 2.5)];
    const KEEP: Keep = Keep::input(1).and(Keep::OUTPUT);

    fn float(a: f64, b: f64) -> f64 {
        a / b
    }

    fn int(_a: i64, _b: i64) -> Option<i64> {
        unreachable!("the domain is floats")
    }

    /// da = dy / b; db = −dy · y / b. Reading `y` back spares keeping `a`.
    fn grad(g: &Vjp<'_>) -> Grad {
        g.pair(|| g.dy() / g.x(1), || -(g.dy() * &g.y()) / g.x(1))
    }
}

impl Tensor {
    /// a / b; integers become floats first, where b is a tensor or a number.
    #[track_caller]
    pub fn div<'a>(&self, other: impl Into<Operand<'a>>) -> Tensor {
        with_float_operand(Div, self, other.into())
    }
}
