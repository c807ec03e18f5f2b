//! `lgamma`: y = log |Γ(x)|, +∞ at the poles.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// log |Γ(x)|, +∞ at the poles.
    Lgamma
}

impl Unary for Lgamma {
    const NAME: &'static str = "lgamma";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::lgamma);
    const RANGE: (f64, f64) = (0.3, 4.0);
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        thalweg_kernels::math::special::lgamma(x)
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() * g.x(0).digamma())
    }
}

impl Tensor {
    /// log |Γ(x)|, +∞ at the poles.
    #[track_caller]
    pub fn lgamma(&self) -> Tensor {
        run(Lgamma, &[&self.as_float()])
    }
}
