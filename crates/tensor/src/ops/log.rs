//! `log`: y = log x, −∞ at 0, NaN below.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// The natural logarithm.
    Log
}

impl Unary for Log {
    const NAME: &'static str = "log";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::log);
    const RANGE: (f64, f64) = (0.1, 3.0);
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        x.ln()
    }

    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() / g.x(0))
    }
}

impl Tensor {
    /// The natural logarithm.
    #[track_caller]
    pub fn log(&self) -> Tensor {
        run(Log, &[&self.as_float()])
    }
}
