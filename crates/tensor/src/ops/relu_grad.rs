//! `relu_grad`: y = b where a is not ≤ 0, else 0: the gradient of `relu` in one pass.

use crate::apply::run;
use crate::ops::elementwise::{Binary, binary_op};
use crate::ops::{Grad, Keep, Vjp};

binary_op! {
    /// b where a is not ≤ 0, else 0.
    ReluGrad
}

impl Binary for ReluGrad {
    const NAME: &'static str = "relu_grad";
    const F32: Option<fn(&[f32], &[f32], &mut [f32])> =
        Some(thalweg_kernels::stream::arithmetic::relu_backward);
    const KEEP: Keep = Keep::input(0);

    fn float(a: f64, b: f64) -> f64 {
        if a <= 0.0 { 0.0 } else { b }
    }

    fn int(_a: i64, _b: i64) -> Option<i64> {
        unreachable!("the domain is floats")
    }

    /// Linear in b, constant in a almost everywhere.
    fn grad(g: &Vjp<'_>) -> Grad {
        let db = g.want(1, || run(ReluGrad, &[g.x(0), g.dy()]));
        Grad::Inputs(smallvec::smallvec![None, db])
    }
}
