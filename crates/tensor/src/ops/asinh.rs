//! `asinh`: y = arsinh x.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// The inverse of sinh.
    Asinh
}

impl Unary for Asinh {
    const NAME: &'static str = "asinh";
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        x.asinh()
    }

    /// dx = dy / √(1 + x²), where x² may overflow and the root does not.
    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() / g.x(0).hypot(1.0))
    }
}

impl Tensor {
    /// The inverse of sinh.
    #[track_caller]
    pub fn asinh(&self) -> Tensor {
        run(Asinh, &[&self.as_float()])
    }
}
