//! `log_softmax_grad`: dx = dy − exp(y) Σ dy over each row of the last axis, for y = log_softmax(x).

use thalweg_core::{View, ViewMut};
use thalweg_kernels::rows;

use crate::error::OpError;
use crate::meta::Meta;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::rowwise::{ROW_SHAPES, eval_rows, fast_rows, infer_rows};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// y, dy → dx.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct LogSoftmaxGrad;

impl Primitive for LogSoftmaxGrad {
    const NAME: &'static str = "log_softmax_grad";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        infer_rows::<2>(Self::NAME, x)
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::input(1))
    }

    /// With z the incoming gradient: that of y is −z exp(y) Σ dy, that of dy is z − Σ z exp(y).
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (dy, z) = (g.x(1), g.dy());
        let p = g.x(0).exp();
        g.pair(|| -(z * &p * dy.sum_keepdim(-1)), || z - (z * &p).sum_keepdim(-1))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        eval_rows([x[0], x[1]], y, |[y, dy], dx| {
            let sum: f64 = dy.iter().sum();
            dx.iter_mut().zip(y.iter().zip(dy)).for_each(|(dx, (y, dy))| *dx = dy - y.exp() * sum);
        });
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        fast_rows(x, y, |x, cols, dx| rows::softmax::log_softmax_backward(&x[0], &x[1], cols, dx))
    }

    fn on_rows(&self, x: &[&Meta]) -> Option<(usize, Self)> {
        Some((*x[0].shape.last()?, *self))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 5 * y.numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        Some(&x[1] - x[0].exp() * x[1].sum_keepdim(-1))
    }

    fn samples() -> Vec<Sample> {
        ROW_SHAPES.map(|s| Sample::new(LogSoftmaxGrad, [Draw::float(s, -3.0, 0.0), Draw::any(s)])).into()
    }
}
