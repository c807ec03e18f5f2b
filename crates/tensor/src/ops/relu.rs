//! `relu`: y = max(x, 0), NaN where x is.

use crate::apply::run;
use crate::ops::elementwise::{Domain, Unary, unary_op};
use crate::ops::{Grad, Keep, ReluGrad, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// max(x, 0), NaN where x is.
    Relu
}

impl Unary for Relu {
    const NAME: &'static str = "relu";
    const DOMAIN: Domain = Domain::Number;
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::stream::arithmetic::relu);
    const KEEP: Keep = Keep::OUTPUT;

    fn float(x: f64) -> f64 {
        if x > 0.0 || x.is_nan() { x } else { 0.0 }
    }

    fn int(x: i64) -> i64 {
        x.max(0)
    }

    /// dx = dy where y > 0. The result says it as well as the operand, and is kept by what follows.
    fn grad(g: &Vjp<'_>) -> Grad {
        Grad::one(run(ReluGrad, &[&g.y(), g.dy()]))
    }
}

impl Tensor {
    /// max(x, 0), NaN where x is. Its gradient at 0 is 0.
    #[track_caller]
    pub fn relu(&self) -> Tensor {
        run(Relu, &[self])
    }
}
