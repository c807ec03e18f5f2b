//! Normalisation within one example: of its last axes, of groups of channels, of single channels.

use thalweg_core::{DType, Shape};
use thalweg_derive::Module;
use thalweg_tensor::{Param, Tensor};

use crate::mixed;
use crate::module::Layer;
use crate::summary::Frame;

/// Mean 0 and variance 1 over the last axes, then a learned scale and shift (Ba et al., 2016).
///
/// ```
/// use thalweg_nn::{LayerNorm, Layer};
/// use thalweg_tensor::Tensor;
/// let y = LayerNorm::new(2).forward(&Tensor::from([[1.0f32, 3.0], [-5.0, 5.0]]));
/// assert!((y.to_vec::<f32>()[3] - 1.0).abs() < 1e-4);
/// ```
#[derive(Debug, Module)]
pub struct LayerNorm {
    /// Of the normalised shape.
    pub weight: Option<Param>,
    /// Of the normalised shape.
    pub bias: Option<Param>,
    /// Added to the variance.
    pub eps: f64,
    #[module(skip)]
    shape: Shape,
}

impl LayerNorm {
    /// Over the last axes, which have these sizes.
    pub fn new(shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        let (weight, bias) = (scale(&shape), shift(&shape));
        Self { weight, bias, eps: 1e-5, shape }
    }

    /// Without the learned shift.
    pub fn without_bias(mut self) -> Self {
        self.bias = None;
        self
    }

    /// Without learned scale and shift.
    pub fn plain(mut self) -> Self {
        (self.weight, self.bias) = (None, None);
        self
    }
}

impl Layer for LayerNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let frame = Frame::open();
        let (weight, bias) = (value(&self.weight), value(&self.bias));
        let y = mixed::wide(x).layer_norm(&self.shape, weight.as_ref(), bias.as_ref(), self.eps);
        frame.close(self, y)
    }
}

/// Root mean square 1 over the last axes, then a learned scale (Zhang and Sennrich, 2019).
#[derive(Debug, Module)]
pub struct RmsNorm {
    /// Of the normalised shape.
    pub weight: Param,
    /// Added to the mean square. PyTorch's default is the epsilon of the dtype.
    pub eps: f64,
    #[module(skip)]
    shape: Shape,
}

impl RmsNorm {
    /// Over the last axes, which have these sizes.
    pub fn new(shape: impl Into<Shape>) -> Self {
        let shape = shape.into();
        Self { weight: ones(&shape), eps: 1e-6, shape }
    }
}

impl Layer for RmsNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let frame = Frame::open();
        frame.close(self, mixed::wide(x).rms_norm(&self.shape, Some(&self.weight.get()), self.eps))
    }
}

/// Mean 0 and variance 1 in each group of channels (axis 1) of each example, then a learned scale and
/// shift per channel (Wu and He, 2018).
#[derive(Debug, Module)]
pub struct GroupNorm {
    /// (channels).
    pub weight: Option<Param>,
    /// (channels).
    pub bias: Option<Param>,
    /// Added to the variance.
    pub eps: f64,
    groups: usize,
}

impl GroupNorm {
    /// For so many groups of so many channels in all.
    #[track_caller]
    pub fn new(groups: usize, channels: usize) -> Self {
        assert!(
            groups > 0 && channels.is_multiple_of(groups),
            "group_norm: {channels} channels are no multiple of {groups} groups"
        );
        let shape = Shape::from([channels]);
        Self { weight: scale(&shape), bias: shift(&shape), eps: 1e-5, groups }
    }
}

impl Layer for GroupNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let frame = Frame::open();
        let (weight, bias) = (value(&self.weight), value(&self.bias));
        let y = mixed::wide(x).group_norm(self.groups, weight.as_ref(), bias.as_ref(), self.eps);
        frame.close(self, y)
    }
}

/// Mean 0 and variance 1 in each channel (axis 1) of each example; plain unless made
/// [`InstanceNorm::affine`] (Ulyanov et al., 2016).
#[derive(Debug, Module)]
pub struct InstanceNorm {
    /// (channels).
    pub weight: Option<Param>,
    /// (channels).
    pub bias: Option<Param>,
    /// Added to the variance.
    pub eps: f64,
}

impl InstanceNorm {
    /// For any number of channels.
    pub fn new() -> Self {
        Self { weight: None, bias: None, eps: 1e-5 }
    }

    /// With a learned scale and shift per channel.
    pub fn affine(channels: usize) -> Self {
        let shape = Shape::from([channels]);
        Self { weight: scale(&shape), bias: shift(&shape), ..Self::new() }
    }
}

impl Default for InstanceNorm {
    fn default() -> Self {
        Self::new()
    }
}

impl Layer for InstanceNorm {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let frame = Frame::open();
        let (weight, bias) = (value(&self.weight), value(&self.bias));
        frame.close(self, mixed::wide(x).instance_norm(weight.as_ref(), bias.as_ref(), self.eps))
    }
}

fn ones(shape: &Shape) -> Param {
    Param::new("weight", Tensor::ones(shape, DType::F32))
}

pub(super) fn scale(shape: &Shape) -> Option<Param> {
    Some(ones(shape))
}

pub(super) fn shift(shape: &Shape) -> Option<Param> {
    Some(Param::new("bias", Tensor::zeros(shape, DType::F32)))
}

pub(super) fn value(param: &Option<Param>) -> Option<Tensor> {
    param.as_ref().map(Param::get)
}
