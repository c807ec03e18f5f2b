//! `sinh`: y = sinh x.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// sinh x.
    Sinh
}

impl Unary for Sinh {
    const NAME: &'static str = "sinh";
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        x.sinh()
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() * g.x(0).cosh())
    }
}

impl Tensor {
    /// sinh x.
    #[track_caller]
    pub fn sinh(&self) -> Tensor {
        run(Sinh, &[&self.as_float()])
    }
}
