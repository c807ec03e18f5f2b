//! Functions of single elements, as layers.

use thalweg_core::DType;
use thalweg_derive::Module;
use thalweg_tensor::{Param, Tensor};

use crate::module::{Layer, Module, Visitor};
use crate::summary::Frame;

/// An activation chosen by name.
///
/// ```
/// use thalweg_nn::{Activation, Layer};
/// use thalweg_tensor::Tensor;
/// let x = Tensor::from([-1.0f32, 2.0]);
/// assert_eq!(Activation::Relu.forward(&x).to_vec::<f32>(), [0.0, 2.0]);
/// assert_eq!(Activation::LeakyRelu(0.1).forward(&x).to_vec::<f32>(), [-0.1, 2.0]);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
#[non_exhaustive]
#[allow(missing_docs)] // each bears the name of the tensor method that documents it
pub enum Activation {
    #[default]
    Relu,
    Relu6,
    LeakyRelu(f64),
    Elu(f64),
    Celu(f64),
    Selu,
    Gelu,
    GeluTanh,
    Silu,
    Mish,
    Tanh,
    Sigmoid,
    LogSigmoid,
    Softplus,
    Softsign,
    Hardtanh,
    Hardsigmoid,
    Hardswish,
    Tanhshrink,
    /// Along the last axis.
    Softmax,
    /// Along the last axis.
    LogSoftmax,
    /// Halves the last axis.
    Glu,
    /// Nothing.
    Identity,
}

impl Module for Activation {
    fn visit(&self, _: &mut Visitor<'_>) {}
    fn kind(&self) -> String {
        format!("{self:?}")
    }
}

impl Layer for Activation {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let frame = Frame::open();
        let y = match *self {
            Activation::Relu => x.relu(),
            Activation::Relu6 => x.relu6(),
            Activation::LeakyRelu(slope) => x.leaky_relu(slope),
            Activation::Elu(alpha) => x.elu(alpha),
            Activation::Celu(alpha) => x.celu(alpha),
            Activation::Selu => x.selu(),
            Activation::Gelu => x.gelu(),
            Activation::GeluTanh => x.gelu_tanh(),
            Activation::Silu => x.silu(),
            Activation::Mish => x.mish(),
            Activation::Tanh => x.tanh(),
            Activation::Sigmoid => x.sigmoid(),
            Activation::LogSigmoid => x.log_sigmoid(),
            Activation::Softplus => x.softplus(),
            Activation::Softsign => x.softsign(),
            Activation::Hardtanh => x.hardtanh(-1.0, 1.0),
            Activation::Hardsigmoid => x.hardsigmoid(),
            Activation::Hardswish => x.hardswish(),
            Activation::Tanhshrink => x.tanhshrink(),
            Activation::Softmax => x.softmax(-1),
            Activation::LogSoftmax => x.log_softmax(-1),
            Activation::Glu => x.glu(-1),
            Activation::Identity => x.clone(),
        };
        frame.close(self, y)
    }
}

/// ReLU whose slope on the left is learned (He et al., 2015).
#[derive(Debug, Module)]
pub struct PRelu {
    /// One slope, or one per channel (axis 1).
    pub weight: Param,
}

impl PRelu {
    /// With one slope for all (`channels` 1) or one per channel, all 0.25 at first.
    pub fn new(channels: usize) -> Self {
        Self { weight: Param::new("weight", Tensor::full([channels], 0.25, DType::F32)) }
    }
}

impl Layer for PRelu {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let frame = Frame::open();
        frame.close(self, x.prelu(&self.weight.get()))
    }
}
