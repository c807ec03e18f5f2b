//! `gelu_tanh`: y = x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))); NaN at −∞.

use crate::apply::run;
use crate::ops::elementwise::{Unary, unary_op};
use crate::ops::{Grad, Keep, Vjp};
use crate::tensor::Tensor;

unary_op! {
    /// GELU by its tanh approximation, as GPT-2 has it.
    GeluTanh
}

impl Unary for GeluTanh {
    const NAME: &'static str = "gelu_tanh";
    const F32: Option<fn(&[f32], &mut [f32])> = Some(thalweg_kernels::math::gelu_tanh);
    const KEEP: Keep = Keep::input(0);

    fn float(x: f64) -> f64 {
        let u = ROOT * (x + CUBIC * x * x * x);
        x / (1.0 + (-2.0 * u).exp())
    }

    fn body(x: &Tensor) -> Option<Tensor> {
        Some(x * (inner(x).tanh() * 0.5 + 0.5))
    }

    /// With t = tanh u(x): dx = dy · ((1 + t)/2 + x/2 (1 − t²) u′(x)).
    fn grad(g: &Vjp<'_>) -> Grad {
        g.rounded_once(|x, dy| {
            let square = &x.square();
            let t = &inner(x).tanh();
            let slope = (square * (3.0 * CUBIC) + 1.0) * (0.5 * ROOT);
            dy * ((t * 0.5 + 0.5) + x * (1.0 - t.square()) * slope)
        })
    }
}

impl Tensor {
    /// GELU by its tanh approximation, as GPT-2 has it.
    #[track_caller]
    pub fn gelu_tanh(&self) -> Tensor {
        run(GeluTanh, &[&self.as_float()])
    }
}

/// √(2/π).
const ROOT: f64 = 0.797_884_560_802_865_4;
const CUBIC: f64 = 0.044715;

/// u(x) = √(2/π) (x + 0.044715 x³).
fn inner(x: &Tensor) -> Tensor {
    x * (x.square() * (CUBIC * ROOT) + ROOT)
}
