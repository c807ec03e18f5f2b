//! Normalisation by statistics of a batch, of groups of channels, of neighbours and of vectors.

use thalweg_core::Shape;

use crate::apply::run;
use crate::error::{InOp, OpError, fail, or_fail};
use crate::ops::{BatchMoments, BatchNorm, Number};
use crate::tensor::Tensor;

/// The options of batch normalisation.
#[derive(Clone)]
pub struct BatchNormOptions<'a> {
    /// One factor per channel, 1 if `None`.
    pub weight: Option<&'a Tensor>,
    /// One summand per channel, 0 if `None`.
    pub bias: Option<&'a Tensor>,
    /// The share of the newest batch in the running statistics.
    pub momentum: f64,
    /// Added to the variance.
    pub eps: f64,
}

impl Default for BatchNormOptions<'_> {
    fn default() -> Self {
        Self { weight: None, bias: None, momentum: 0.1, eps: 1e-5 }
    }
}

impl Tensor {
    /// Normalises each channel (axis 1) by its mean and variance over the batch and all further axes.
    /// Returns the result and the running mean and variance moved towards this batch's; the running
    /// variance takes the unbiased estimate.
    #[track_caller]
    pub fn batch_norm_train(
        &self,
        running_mean: &Tensor,
        running_var: &Tensor,
        options: &BatchNormOptions<'_>,
    ) -> (Tensor, Tensor, Tensor) {
        let op = "batch_norm_train";
        let column = channel_shape(op, self);
        let n = self.numel() / self.size(1).max(1);
        if n < 2 && self.size(1) > 0 {
            let need = "a batch needs more than one value per channel to have a variance";
            fail(OpError::Argument {
                op,
                name: "values",
                value: n.to_string(),
                shape: self.shape().clone(),
                need,
            });
        }
        let x = self.as_float();
        let vector = |v: &Tensor| per_channel(op, self, v).to_dtype(x.dtype());
        let (weight, bias) = (options.weight.map(vector), options.bias.map(vector));
        let norm = BatchNorm { eps: Number(options.eps) };
        let y = match (&weight, &bias) {
            (None, None) => run(norm, &[&x]),
            (Some(w), None) => run(norm, &[&x, w]),
            (Some(w), Some(b)) => run(norm, &[&x, w, b]),
            (None, Some(b)) => run(norm, &[&x]) + b.reshape(&column),
        };
        let moments = run(BatchMoments, &[&x.stop_gradient()]);
        let m = options.momentum;
        let unbiased = moments.select(0, 1) * (n as f64 / (n as f64 - 1.0));
        let moved = |old: &Tensor, new: Tensor| per_channel(op, self, old) * (1.0 - m) + new * m;
        (y, moved(running_mean, moments.select(0, 0)), moved(running_var, unbiased))
    }

    /// Normalises each channel (axis 1) by statistics from training.
    #[track_caller]
    pub fn batch_norm_eval(
        &self,
        running_mean: &Tensor,
        running_var: &Tensor,
        options: &BatchNormOptions<'_>,
    ) -> Tensor {
        let op = "batch_norm_eval";
        let column = channel_shape(op, self);
        let x = self.as_float();
        let scale = (per_channel(op, self, running_var) + options.eps).rsqrt();
        let scale = match options.weight {
            Some(w) => scale * per_channel(op, self, w),
            None => scale,
        };
        let centred = x - per_channel(op, self, running_mean).reshape(&column);
        shifted(op, centred * scale.reshape(&column), options.bias)
    }

    /// Normalises each of `groups` groups of channels (axis 1) over its channels and all further axes,
    /// then scales and shifts each channel.
    #[track_caller]
    pub fn group_norm(
        &self,
        groups: usize,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Tensor {
        by_group("group_norm", self, groups, weight, bias, eps)
    }

    /// Normalises each channel (axis 1) of each image over all further axes, then scales and shifts it.
    #[track_caller]
    pub fn instance_norm(&self, weight: Option<&Tensor>, bias: Option<&Tensor>, eps: f64) -> Tensor {
        channel_shape("instance_norm", self);
        by_group("instance_norm", self, self.size(1), weight, bias, eps)
    }

    /// x / (k + alpha · mean of x² over `size` neighbouring channels)^beta.
    #[track_caller]
    pub fn local_response_norm(&self, size: usize, alpha: f64, beta: f64, k: f64) -> Tensor {
        let op = "local_response_norm";
        channel_shape(op, self);
        if size == 0 {
            let (value, shape) = (size.to_string(), self.shape().clone());
            fail(OpError::Argument { op, name: "size", value, shape, need: "must be at least 1" });
        }
        let (x, channels) = (self.as_float(), self.size(1));
        let zeros = |n: usize| Tensor::zeros(self.shape().with(1, n), x.dtype());
        let padded = Tensor::concat(&[zeros(size / 2), &x * &x, zeros((size - 1) / 2)], 1);
        let sum = (0..size).map(|i| padded.narrow(1, i, channels)).reduce(|a, b| a + b);
        let mean = sum.expect("size is at least 1") / size as f64;
        x / (mean * alpha + k).powf(beta)
    }

    /// x / max(‖x‖ₚ, eps) along an axis. PyTorch's eps is 1e-12.
    #[track_caller]
    pub fn normalize(&self, p: f64, axis: isize, eps: f64) -> Tensor {
        let axis = or_fail(self.shape().axis(axis).in_op("normalize"));
        let x = self.as_float();
        let column: Shape =
            x.shape().iter().enumerate().map(|(i, &d)| if i == axis { 1 } else { d }).collect();
        let norm = x.vector_norm(p, axis).reshape(column).clamp_min(eps);
        x / norm
    }
}

/// (1, channels, 1, …): the shape in which one number per channel meets x.
#[track_caller]
fn channel_shape(op: &'static str, x: &Tensor) -> Shape {
    if x.rank() < 2 {
        fail(OpError::Rank { op, want: "at least 2 (batch, channels, …)", shape: x.shape().clone() });
    }
    (0..x.rank()).map(|i| if i == 1 { x.size(1) } else { 1 }).collect()
}

/// A vector with one number per channel.
#[track_caller]
fn per_channel(op: &'static str, x: &Tensor, v: &Tensor) -> Tensor {
    if v.shape()[..] != [x.size(1)] {
        let hint = "there must be one number per channel (axis 1)";
        fail(OpError::Shapes { op, left: x.shape().clone(), right: v.shape().clone(), hint });
    }
    v.clone()
}

#[track_caller]
fn shifted(op: &'static str, y: Tensor, bias: Option<&Tensor>) -> Tensor {
    match bias {
        Some(b) => {
            let b = per_channel(op, &y, b).reshape(channel_shape(op, &y));
            y + b
        }
        None => y,
    }
}

#[track_caller]
fn by_group(
    op: &'static str,
    x: &Tensor,
    groups: usize,
    weight: Option<&Tensor>,
    bias: Option<&Tensor>,
    eps: f64,
) -> Tensor {
    let column = channel_shape(op, x);
    if groups == 0 || !x.size(1).is_multiple_of(groups) {
        let need = "the number of channels (axis 1) must be a multiple of the number of groups";
        fail(OpError::Argument {
            op,
            name: "groups",
            value: groups.to_string(),
            shape: x.shape().clone(),
            need,
        });
    }
    let cols = x.size(1) / groups * x.shape()[2..].iter().product::<usize>();
    let rows = x.reshape([x.size(0) * groups, cols]);
    let y = rows.layer_norm(cols, None, None, eps).reshape(x.shape());
    let y = match weight {
        Some(w) => y * per_channel(op, x, w).reshape(&column),
        None => y,
    };
    shifted(op, y, bias)
}
