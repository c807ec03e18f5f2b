//! `softmax`: y = exp(x − max) / Σ exp(x − max) over each row of the last axis.

use thalweg_core::{View, ViewMut};
use thalweg_kernels::rows;

use crate::apply::run;
use crate::error::{InOp, OpError, or_fail};
use crate::meta::Meta;
use crate::ops::SoftmaxGrad;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::rowwise::{ROW_SHAPES, along_last, eval_rows, fast_rows, infer_rows};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// Each row of the last axis as positive numbers that sum to 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Softmax;

impl Primitive for Softmax {
    const NAME: &'static str = "softmax";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        infer_rows::<1>(Self::NAME, x)
    }

    fn keep(&self) -> Keep {
        Keep::OUTPUT
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        Grad::one(run(SoftmaxGrad, &[&g.y(), g.dy()]))
    }

    /// A row of only −∞, and a row with +∞ or NaN, is NaN: ∞ − ∞ has no answer.
    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        eval_rows([x[0]], y, |[x], y| {
            let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            y.iter_mut().zip(x).for_each(|(y, x)| *y = (x - max).exp());
            let sum: f64 = y.iter().sum();
            y.iter_mut().for_each(|y| *y /= sum);
        });
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        fast_rows(x, y, |x, cols, y| rows::softmax::softmax(&x[0], cols, y))
    }

    fn on_rows(&self, x: &[&Meta]) -> Option<(usize, Self)> {
        Some((*x[0].shape.last()?, *self))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 5 * y.numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        if x[0].numel() == 0 {
            return Some(x[0].clone());
        }
        let e = (&x[0] - x[0].stop_gradient().amax_keepdim(-1)).exp();
        Some(&e / e.sum_keepdim(-1))
    }

    fn samples() -> Vec<Sample> {
        ROW_SHAPES.map(|s| Sample::new(Softmax, [Draw::any(s)])).into()
    }
}

impl Tensor {
    /// exp(x) / Σ exp(x) along an axis.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let x = Tensor::from([[0.0f32, 0.0], [1000.0, 0.0]]);
    /// assert_eq!(x.softmax(-1).to_vec::<f32>(), [0.5, 0.5, 1.0, 0.0]);
    /// ```
    #[track_caller]
    pub fn softmax(&self, axis: isize) -> Tensor {
        let axis = or_fail(self.shape().axis(axis).in_op(Softmax::NAME));
        along_last(&self.as_float(), axis, Softmax)
    }

    /// [`Tensor::softmax`] of −x.
    #[track_caller]
    pub fn softmin(&self, axis: isize) -> Tensor {
        (-self).softmax(axis)
    }
}
