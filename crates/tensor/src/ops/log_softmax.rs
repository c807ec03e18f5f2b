//! `log_softmax`: y = x − log Σ exp(x) over each row of the last axis.

use thalweg_core::{View, ViewMut};
use thalweg_kernels::rows;

use crate::apply::run;
use crate::error::{InOp, OpError, or_fail};
use crate::meta::Meta;
use crate::ops::LogSoftmaxGrad;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::rowwise::{ROW_SHAPES, along_last, eval_rows, fast_rows, infer_rows};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// The logarithm of softmax, exact where softmax itself would be 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct LogSoftmax;

impl Primitive for LogSoftmax {
    const NAME: &'static str = "log_softmax";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        infer_rows::<1>(Self::NAME, x)
    }

    fn keep(&self) -> Keep {
        Keep::OUTPUT
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        Grad::one(run(LogSoftmaxGrad, &[&g.y(), g.dy()]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        eval_rows([x[0]], y, |[x], y| {
            let max = x.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let log_sum = x.iter().map(|x| (x - max).exp()).sum::<f64>().ln();
            y.iter_mut().zip(x).for_each(|(y, x)| *y = x - max - log_sum);
        });
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        fast_rows(x, y, |x, cols, y| rows::softmax::log_softmax(&x[0], cols, y))
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
        let shifted = &x[0] - x[0].stop_gradient().amax_keepdim(-1);
        let log_sum = shifted.exp().sum_keepdim(-1).log();
        Some(shifted - log_sum)
    }

    fn samples() -> Vec<Sample> {
        ROW_SHAPES.map(|s| Sample::new(LogSoftmax, [Draw::any(s)])).into()
    }
}

impl Tensor {
    /// log(softmax(x)) along an axis, without the loss of computing softmax first.
    #[track_caller]
    pub fn log_softmax(&self, axis: isize) -> Tensor {
        let axis = or_fail(self.shape().axis(axis).in_op(LogSoftmax::NAME));
        along_last(&self.as_float(), axis, LogSoftmax)
    }
}
