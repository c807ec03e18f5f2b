//! Convolution over one, two or three axes, and its transpose.

use thalweg_core::Shape;
use thalweg_derive::Module;
use thalweg_tensor::{ConvOptions, ConvTransposeOptions, Padding, Param, PerAxis, Rng, Tensor};

use crate::init;
use crate::mixed;
use crate::module::Layer;
use crate::summary::Frame;

/// Convolution over `N` axes: (batch, in, *input) → (batch, out, *output).
///
/// ```
/// use thalweg_nn::{Conv2d, Layer};
/// use thalweg_tensor::{Rng, Tensor};
/// let layer = Conv2d::new(1, 8, 3, &mut Rng::seed(0)).padding(1).stride(2);
/// let images = Tensor::from([[[[0.0f32; 28]; 28]]; 4]);
/// assert_eq!(layer.forward(&images).shape()[..], [4, 8, 14, 14]);
/// ```
#[derive(Debug, Module)]
pub struct Conv<const N: usize> {
    /// (out, in / groups, *kernel).
    pub weight: Param,
    /// (out).
    pub bias: Option<Param>,
    /// Stride, padding, dilation and groups.
    #[module(skip)]
    pub options: ConvOptions,
}

/// [`Conv`] over time.
pub type Conv1d = Conv<1>;
/// [`Conv`] over images.
pub type Conv2d = Conv<2>;
/// [`Conv`] over volumes.
pub type Conv3d = Conv<3>;

impl<const N: usize> Conv<N> {
    /// From `inputs` to `outputs` channels; weights and bias start uniform between ±1 / √(inputs ·
    /// kernel).
    #[track_caller]
    pub fn new(inputs: usize, outputs: usize, kernel: impl Into<PerAxis>, rng: &mut Rng) -> Self {
        Self::with(inputs, outputs, kernel, ConvOptions::default(), rng)
    }

    /// With options; `groups` among them decides the shape of the weight.
    #[track_caller]
    pub fn with(
        inputs: usize,
        outputs: usize,
        kernel: impl Into<PerAxis>,
        options: ConvOptions,
        rng: &mut Rng,
    ) -> Self {
        let groups = checked_groups("conv", inputs, outputs, options.groups);
        let shape = shape::<N>("conv", outputs, inputs / groups, kernel.into());
        let fan = shape[1..].iter().product();
        Self {
            weight: Param::new("weight", init::by_fan(shape, fan, rng)),
            bias: Some(Param::new("bias", init::by_fan([outputs], fan, rng))),
            options,
        }
    }

    /// Steps from one window to the next.
    pub fn stride(mut self, stride: impl Into<PerAxis>) -> Self {
        self.options.stride = stride.into();
        self
    }

    /// Zeros around the input.
    pub fn padding(mut self, padding: impl Into<Padding>) -> Self {
        self.options.padding = padding.into();
        self
    }

    /// Steps from one tap to the next.
    pub fn dilation(mut self, dilation: impl Into<PerAxis>) -> Self {
        self.options.dilation = dilation.into();
        self
    }

    /// Without the summand: for a layer that a norm follows.
    pub fn without_bias(mut self) -> Self {
        self.bias = None;
        self
    }
}

impl<const N: usize> Layer for Conv<N> {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let frame = Frame::open();
        let (x, weight) = (mixed::narrow(x), mixed::narrow(&self.weight.get()));
        let bias = self.bias.as_ref().map(|b| mixed::narrow(&b.get()));
        let y = match N {
            1 => x.conv1d(&weight, bias.as_ref(), &self.options),
            2 => x.conv2d(&weight, bias.as_ref(), &self.options),
            _ => x.conv3d(&weight, bias.as_ref(), &self.options),
        };
        frame.close(self, y)
    }
}

/// The transpose of a convolution: (batch, in, *input) → (batch, out, *output), where a stride makes the
/// output larger.
#[derive(Debug, Module)]
pub struct ConvTranspose<const N: usize> {
    /// (in, out / groups, *kernel).
    pub weight: Param,
    /// (out).
    pub bias: Option<Param>,
    /// Stride, padding, dilation and groups.
    #[module(skip)]
    pub options: ConvTransposeOptions,
}

/// [`ConvTranspose`] over time.
pub type ConvTranspose1d = ConvTranspose<1>;
/// [`ConvTranspose`] over images.
pub type ConvTranspose2d = ConvTranspose<2>;
/// [`ConvTranspose`] over volumes.
pub type ConvTranspose3d = ConvTranspose<3>;

impl<const N: usize> ConvTranspose<N> {
    /// From `inputs` to `outputs` channels; weights and bias start uniform between ±1 / √(outputs ·
    /// kernel), as in PyTorch.
    #[track_caller]
    pub fn new(inputs: usize, outputs: usize, kernel: impl Into<PerAxis>, rng: &mut Rng) -> Self {
        Self::with(inputs, outputs, kernel, ConvTransposeOptions::default(), rng)
    }

    /// With options; `groups` among them decides the shape of the weight.
    #[track_caller]
    pub fn with(
        inputs: usize,
        outputs: usize,
        kernel: impl Into<PerAxis>,
        options: ConvTransposeOptions,
        rng: &mut Rng,
    ) -> Self {
        let groups = checked_groups("conv_transpose", inputs, outputs, options.groups);
        let shape = shape::<N>("conv_transpose", inputs, outputs / groups, kernel.into());
        let fan = shape[1..].iter().product();
        Self {
            weight: Param::new("weight", init::by_fan(shape, fan, rng)),
            bias: Some(Param::new("bias", init::by_fan([outputs], fan, rng))),
            options,
        }
    }

    /// Steps from one output window to the next.
    pub fn stride(mut self, stride: impl Into<PerAxis>) -> Self {
        self.options.stride = stride.into();
        self
    }

    /// What is cut from the output's edges.
    pub fn padding(mut self, padding: impl Into<PerAxis>) -> Self {
        self.options.padding = padding.into();
        self
    }

    /// Without the summand.
    pub fn without_bias(mut self) -> Self {
        self.bias = None;
        self
    }
}

impl<const N: usize> Layer for ConvTranspose<N> {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let frame = Frame::open();
        let (x, weight) = (mixed::narrow(x), mixed::narrow(&self.weight.get()));
        let bias = self.bias.as_ref().map(|b| mixed::narrow(&b.get()));
        let y = match N {
            1 => x.conv_transpose1d(&weight, bias.as_ref(), &self.options),
            2 => x.conv_transpose2d(&weight, bias.as_ref(), &self.options),
            _ => x.conv_transpose3d(&weight, bias.as_ref(), &self.options),
        };
        frame.close(self, y)
    }
}

#[track_caller]
fn checked_groups(layer: &str, inputs: usize, outputs: usize, groups: usize) -> usize {
    assert!(
        groups > 0 && inputs.is_multiple_of(groups) && outputs.is_multiple_of(groups),
        "{layer}: {inputs} inputs and {outputs} outputs must be multiples of {groups} groups"
    );
    groups
}

/// (a, b, *kernel), with one size of the kernel per axis.
#[track_caller]
fn shape<const N: usize>(layer: &str, a: usize, b: usize, kernel: PerAxis) -> Shape {
    const { assert!(1 <= N && N <= 3, "convolution is defined over one to three axes") };
    let Some(sizes) = kernel.sizes(N) else {
        panic!("{layer}: the kernel {kernel:?} needs one size, or {N}");
    };
    [a, b].into_iter().chain(sizes).collect()
}
