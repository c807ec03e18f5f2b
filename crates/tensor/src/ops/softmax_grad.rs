//! `softmax_grad`: dx = y (dy − Σ dy y) over each row of the last axis, for y = softmax(x).

use thalweg_core::{View, ViewMut};
use thalweg_kernels::rows;

use crate::apply::run;
use crate::error::OpError;
use crate::meta::Meta;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::rowwise::{ROW_SHAPES, eval_rows, fast_rows, infer_rows};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// y, dy → dx.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct SoftmaxGrad;

impl Primitive for SoftmaxGrad {
    const NAME: &'static str = "softmax_grad";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        infer_rows::<2>(Self::NAME, x)
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::input(1))
    }

    /// With z the incoming gradient and s = Σ dy y: that of y is z (dy − s) − dy Σ z y; with respect to
    /// dy the map is its own adjoint.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (y, dy, z) = (g.x(0), g.x(1), g.dy());
        g.pair(
            || z * (dy - (dy * y).sum_keepdim(-1)) - dy * (z * y).sum_keepdim(-1),
            || run(SoftmaxGrad, &[y, z]),
        )
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        eval_rows([x[0], x[1]], y, |[y, dy], dx| {
            let dot: f64 = y.iter().zip(dy).map(|(y, dy)| y * dy).sum();
            dx.iter_mut().zip(y.iter().zip(dy)).for_each(|(dx, (y, dy))| *dx = y * (dy - dot));
        });
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        fast_rows(x, y, |x, cols, dx| rows::softmax::softmax_backward(&x[0], &x[1], cols, dx))
    }

    fn on_rows(&self, x: &[&Meta]) -> Option<(usize, Self)> {
        Some((*x[0].shape.last()?, *self))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 4 * y.numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        let (y, dy) = (&x[0], &x[1]);
        Some(y * (dy - (dy * y).sum_keepdim(-1)))
    }

    fn samples() -> Vec<Sample> {
        ROW_SHAPES.map(|s| Sample::new(SoftmaxGrad, [Draw::float(s, 0.0, 1.0), Draw::any(s)])).into()
    }
}
