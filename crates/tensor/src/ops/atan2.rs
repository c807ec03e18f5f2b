//! `atan2`: y = the angle of the point (b, a), in (−π, π].

use crate::operand::{Operand, with_float_operand};
use crate::ops::elementwise::{Binary, binary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

binary_op! {
    /// The angle of the point (b, a).
    Atan2
}

impl Binary for Atan2 {
    const NAME: &'static str = "atan2";
    const RANGES: [(f64, f64); 2] = [(0.3, 2.0), (0.3, 2.5)];
    const KEEP: Keep = Keep::input(0).and(Keep::input(1));

    fn float(a: f64, b: f64) -> f64 {
        a.atan2(b)
    }

    fn int(_a: i64, _b: i64) -> Option<i64> {
        unreachable!("the domain is floats")
    }

    /// da = dy · b / r², db = −dy · a / r². Dividing by r twice, since r² may overflow.
    fn grad(g: &Vjp<'_>) -> Grad {
        let (dy, a, b) = (g.dy(), g.x(0), g.x(1));
        let r = &a.hypot(b);
        g.pair(|| dy * ((b / r) / r), || -(dy * ((a / r) / r)))
    }
}

impl Tensor {
    /// The angle of the point (`other`, `self`), in (−π, π].
    #[track_caller]
    pub fn atan2<'a>(&self, other: impl Into<Operand<'a>>) -> Tensor {
        with_float_operand(Atan2, self, other.into())
    }
}
