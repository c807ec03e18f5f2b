//! `asin`: y = arcsin x, NaN outside [−1, 1].

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// arcsin x, NaN outside [−1, 1].
    Asin
}

impl Unary for Asin {
    const NAME: &'static str = "asin";
    const RANGE: (f64, f64) = (-0.9, 0.9);
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        x.asin()
    }

    /// dx = dy / √(1 − x²); in factors, so that it is accurate near ±1.
    fn grad(g: &Vjp<'_>) -> Grad {
        let x = g.x(0);
        Grad::one(g.dy() * ((1.0 - x) * (x + 1.0)).rsqrt())
    }
}

impl Tensor {
    /// arcsin x, NaN outside [−1, 1].
    #[track_caller]
    pub fn asin(&self) -> Tensor {
        run(Asin, &[&self.as_float()])
    }
}
