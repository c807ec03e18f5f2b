//! `batch_moments`: (mean, variance) of each channel (axis 1) over the batch and all further axes, in one pass.

use thalweg_core::{View, ViewMut};
use thalweg_kernels::rows::batch;

use crate::error::OpError;
use crate::meta::{Meta, arity};
use crate::ops::batch_norm::{column, reduced, require_channels, sizes};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::rowwise::{narrow_into, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::single;
use crate::tensor::Tensor;

/// x: (batch, channels, …) → (2, channels).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct BatchMoments;

impl Primitive for BatchMoments {
    const NAME: &'static str = "batch_moments";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        require_channels(Self::NAME, x)?;
        Ok(x.with_shape([2, x.shape[1]]))
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::OUTPUT)
    }

    /// With (a, b) the incoming gradient and n values per channel: (a + 2 b (x − mean)) / n.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let x = g.x(0);
        let n = (x.numel() / x.size(1).max(1)) as f64;
        let (a, b) = (g.dy().select(0, 0) / n, g.dy().select(0, 1) * (2.0 / n));
        Grad::one((x - column(&g.y().select(0, 0), x)) * column(&b, x) + column(&a, x))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let ([batch, channels, length], x) = (sizes(x[0].shape()), widened(x[0]));
        let n = (batch * length) as f64;
        let mut out = vec![0.0; 2 * channels];
        for c in 0..channels {
            let of_channel = |(i, v): (usize, &f64)| (i / length % channels == c).then_some(*v);
            let values: Vec<f64> = x.iter().enumerate().filter_map(of_channel).collect();
            let mean = values.iter().sum::<f64>() / n;
            out[c] = mean;
            out[channels + c] = values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n;
        }
        narrow_into(&out, y);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let sizes = sizes(x[0].shape());
        let Some(x) = single::operands(x) else { return false };
        single::result(y, |y| {
            let (mean, variance) = y.split_at_mut(sizes[1]);
            for ((mean, variance), m) in mean.iter_mut().zip(variance).zip(&*batch::moments(&x[0], sizes)) {
                (*mean, *variance) = (m.mean as f32, m.variance() as f32);
            }
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 5 * x[0].numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        let axes = reduced(&x[0]);
        Some(Tensor::stack(&[x[0].mean(&axes[..]), x[0].var(&axes[..], 0)], 0))
    }

    fn samples() -> Vec<Sample> {
        let call = |shape: &[usize]| Sample::new(BatchMoments, [Draw::any(shape)]);
        vec![call(&[4, 3]), call(&[2, 3, 2, 2]), call(&[1, 2, 17])]
    }
}
