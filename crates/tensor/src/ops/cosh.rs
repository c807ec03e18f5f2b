//! `cosh`: y = cosh x.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// cosh x.
    Cosh
}

impl Unary for Cosh {
    const NAME: &'static str = "cosh";
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        x.cosh()
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() * g.x(0).sinh())
    }
}

impl Tensor {
    /// cosh x.
    #[track_caller]
    pub fn cosh(&self) -> Tensor {
        run(Cosh, &[&self.as_float()])
    }
}
