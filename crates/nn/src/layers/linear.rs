//! The dense layer.

use thalweg_derive::Module;
use thalweg_tensor::{Param, Rng, Tensor};

use crate::init;
use crate::mixed;
use crate::module::Layer;
use crate::summary::Frame;

/// x Wᵀ + b over the last axis.
///
/// ```
/// use thalweg_nn::{Layer, Linear};
/// use thalweg_tensor::{Rng, Tensor};
/// let layer = Linear::new(784, 100, &mut Rng::seed(0));
/// assert_eq!(layer.forward(&Tensor::from([[0.0f32; 784]; 32])).shape()[..], [32, 100]);
/// ```
#[derive(Debug, Module)]
pub struct Linear {
    /// (out, in).
    pub weight: Param,
    /// (out).
    pub bias: Option<Param>,
}

impl Linear {
    /// From `inputs` to `outputs` numbers; weights and bias start uniform between ±1 / √inputs.
    pub fn new(inputs: usize, outputs: usize, rng: &mut Rng) -> Self {
        let mut layer = Self::without_bias(inputs, outputs, rng);
        layer.bias = Some(Param::new("bias", init::by_fan([outputs], inputs, rng)));
        layer
    }

    /// Without the summand.
    pub fn without_bias(inputs: usize, outputs: usize, rng: &mut Rng) -> Self {
        let weight = Param::new("weight", init::by_fan([outputs, inputs], inputs, rng));
        Self { weight, bias: None }
    }
}

impl Layer for Linear {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let frame = Frame::open();
        let (x, weight) = (mixed::narrow(x), mixed::narrow(&self.weight.get()));
        let bias = self.bias.as_ref().map(|b| mixed::narrow(&b.get()));
        frame.close(self, x.linear(&weight, bias.as_ref()))
    }
}
