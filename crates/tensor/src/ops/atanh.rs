//! `atanh`: y = artanh x, ±∞ at ±1, NaN outside.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// The inverse of tanh, NaN outside [−1, 1].
    Atanh
}

impl Unary for Atanh {
    const NAME: &'static str = "atanh";
    const RANGE: (f64, f64) = (-0.85, 0.85);
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        x.atanh()
    }

    /// dx = dy / (1 − x²).
    fn grad(g: &Vjp<'_>) -> Grad {
        let x = g.x(0);
        Grad::one(g.dy() / ((1.0 - x) * (x + 1.0)))
    }
}

impl Tensor {
    /// The inverse of tanh, NaN outside [−1, 1].
    #[track_caller]
    pub fn atanh(&self) -> Tensor {
        run(Atanh, &[&self.as_float()])
    }
}
