//! Normalisation by the statistics of a batch.

use thalweg_core::{DType, Shape};
use thalweg_derive::Module;
use thalweg_tensor::{BatchNormOptions, Param, Tensor};

use super::norm::{scale, shift, value};
use crate::mixed;
use crate::module::{Layer, Mode};
use crate::summary::Frame;

/// Mean 0 and variance 1 in each channel (axis 1) over the batch and all further axes, then a learned
/// scale and shift (Ioffe and Szegedy, 2015). In training it uses the batch and keeps running statistics,
/// which it uses otherwise. One layer for any number of axes.
///
/// ```
/// use thalweg_nn::{BatchNorm, Layer, Module};
/// use thalweg_tensor::Tensor;
/// let layer = BatchNorm::new(1);
/// let x = Tensor::from([[1.0f32], [3.0]]);
/// assert!((layer.forward(&x).to_vec::<f32>()[1] - 1.0).abs() < 1e-4);
/// assert_eq!(layer.running_mean.get().to_vec::<f32>(), [0.2]); // a tenth of the way to 2
/// layer.eval();
/// assert!(layer.forward(&x).to_vec::<f32>()[1] > 2.0);
/// ```
#[doc(alias = "BatchNorm1d")]
#[doc(alias = "BatchNorm2d")]
#[doc(alias = "BatchNorm3d")]
#[derive(Debug, Module)]
pub struct BatchNorm {
    /// (channels).
    pub weight: Option<Param>,
    /// (channels).
    pub bias: Option<Param>,
    /// (channels); not trained.
    pub running_mean: Param,
    /// (channels); not trained.
    pub running_var: Param,
    /// The share of the newest batch in the running statistics.
    pub momentum: f64,
    /// Added to the variance.
    pub eps: f64,
    mode: Mode,
}

impl BatchNorm {
    /// For so many channels.
    pub fn new(channels: usize) -> Self {
        let shape = Shape::from([channels]);
        Self {
            weight: scale(&shape),
            bias: shift(&shape),
            running_mean: Param::state("running_mean", Tensor::zeros(&shape, DType::F32)),
            running_var: Param::state("running_var", Tensor::ones(&shape, DType::F32)),
            momentum: 0.1,
            eps: 1e-5,
            mode: Mode::default(),
        }
    }

    /// Without learned scale and shift.
    pub fn plain(mut self) -> Self {
        (self.weight, self.bias) = (None, None);
        self
    }
}

impl Layer for BatchNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let frame = Frame::open();
        let x = mixed::wide(x);
        let (weight, bias) = (value(&self.weight), value(&self.bias));
        let options = BatchNormOptions {
            weight: weight.as_ref(),
            bias: bias.as_ref(),
            momentum: self.momentum,
            eps: self.eps,
        };
        let (mean, var) = (self.running_mean.get(), self.running_var.get());
        let y = if self.mode.is_training() {
            let (y, mean, var) = x.batch_norm_train(&mean, &var, &options);
            self.running_mean.set(mean);
            self.running_var.set(var);
            y
        } else {
            x.batch_norm_eval(&mean, &var, &options)
        };
        frame.close(self, y)
    }
}
