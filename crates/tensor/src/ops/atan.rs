//! `atan`: y = arctan x.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// arctan x.
    Atan
}

impl Unary for Atan {
    const NAME: &'static str = "atan";
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        x.atan()
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() / (g.x(0).square() + 1.0))
    }
}

impl Tensor {
    /// arctan x.
    #[track_caller]
    pub fn atan(&self) -> Tensor {
        run(Atan, &[&self.as_float()])
    }
}
