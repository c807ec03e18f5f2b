//! `acos`: y = arccos x, NaN outside [−1, 1].

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// arccos x, NaN outside [−1, 1].
    Acos
}

impl Unary for Acos {
    const NAME: &'static str = "acos";
    const RANGE: (f64, f64) = (-0.9, 0.9);
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        x.acos()
    }

    /// dx = −dy / √(1 − x²); in factors, so that it is accurate near ±1.
    fn grad(g: &Vjp<'_>) -> Grad {
        let x = g.x(0);
        Grad::one(-(g.dy() * ((1.0 - x) * (x + 1.0)).rsqrt()))
    }
}

impl Tensor {
    /// arccos x, NaN outside [−1, 1].
    #[track_caller]
    pub fn acos(&self) -> Tensor {
        run(Acos, &[&self.as_float()])
    }
}
