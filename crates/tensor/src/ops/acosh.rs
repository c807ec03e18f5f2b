//! `acosh`: y = arcosh x, NaN below 1.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// The inverse of cosh, NaN below 1.
    Acosh
}

impl Unary for Acosh {
    const NAME: &'static str = "acosh";
    const RANGE: (f64, f64) = (1.2, 4.0);
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        x.acosh()
    }

    /// dx = dy / √(x² − 1).
    fn grad(g: &Vjp<'_>) -> Grad {
        let x = g.x(0);
        Grad::one(g.dy() * ((x - 1.0) * (x + 1.0)).rsqrt())
    }
}

impl Tensor {
    /// The inverse of cosh, NaN below 1.
    #[track_caller]
    pub fn acosh(&self) -> Tensor {
        run(Acosh, &[&self.as_float()])
    }
}
