//! Layers made of layers.

use std::panic::Location;

use thalweg_derive::Module;
use thalweg_tensor::Tensor;

use crate::module::{Layer, Module, Visitor};
use crate::summary::{Frame, caller_line};

/// Layers one after the other, named by their positions.
///
/// ```
/// use thalweg_nn::{Activation, Layer, Linear, Module, Sequential};
/// use thalweg_tensor::{Rng, Tensor};
/// let mut rng = Rng::seed(0);
/// let net = Sequential::new()
///     .then(Linear::new(4, 8, &mut rng))
///     .then(Activation::Gelu)
///     .then(Linear::new(8, 2, &mut rng))
///     .map(|x| x * 0.5);
/// assert_eq!(net.forward(&Tensor::from([[1.0f32; 4]])).shape()[..], [1, 2]);
/// assert_eq!(net.params()[2].name, "2.weight");
/// ```
#[derive(Default)]
pub struct Sequential {
    layers: Vec<Box<dyn Layer + Send + Sync>>,
    /// Where each was added: plans name these lines, since the one that calls `forward` is the same for all.
    lines: Vec<&'static Location<'static>>,
}

impl Sequential {
    /// Nothing yet: passes its input on.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a layer to the end.
    #[track_caller]
    pub fn then(mut self, layer: impl Layer + Send + Sync + 'static) -> Self {
        self.layers.push(Box::new(layer));
        self.lines.push(Location::caller());
        self
    }

    /// Adds a function to the end.
    #[track_caller]
    pub fn map(self, f: impl Fn(&Tensor) -> Tensor + Send + Sync + 'static) -> Self {
        self.then(Map { f: Box::new(f) })
    }

    /// The layers in order.
    pub fn layers(&self) -> impl Iterator<Item = &(dyn Layer + Send + Sync)> {
        self.layers.iter().map(|l| &**l)
    }
}

impl Module for Sequential {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self.layers.visit(visitor);
    }
}

impl Layer for Sequential {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let frame = Frame::open();
        let mut x = x.clone();
        for (layer, line) in self.layers.iter().zip(&self.lines) {
            let _line = caller_line(line);
            x = layer.forward(&x);
        }
        frame.close(self, x)
    }
}

impl<L: Layer + ?Sized> Layer for Box<L> {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        (**self).forward(x)
    }
}

/// x + inner(x), or shortcut(x) + inner(x) where the shapes differ.
#[derive(Module)]
pub struct Residual<L, S = crate::Activation> {
    /// What is added.
    pub inner: L,
    /// What it is added to.
    pub shortcut: S,
}

impl<L: Layer> Residual<L> {
    /// Added to the input itself.
    pub fn new(inner: L) -> Self {
        Self { inner, shortcut: crate::Activation::Identity }
    }
}

impl<L: Layer, S: Layer> Residual<L, S> {
    /// Added to what `shortcut` makes of the input, such as a convolution with stride.
    pub fn with_shortcut(inner: L, shortcut: S) -> Self {
        Self { inner, shortcut }
    }
}

impl<L: Layer, S: Layer> Layer for Residual<L, S> {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let frame = Frame::open();
        frame.close(self, self.shortcut.forward(x) + self.inner.forward(x))
    }
}

/// A function as a layer; see [`Sequential::map`].
struct Map {
    f: Box<dyn Fn(&Tensor) -> Tensor + Send + Sync>,
}

impl Module for Map {
    fn visit(&self, _: &mut Visitor<'_>) {}
}

impl Layer for Map {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let frame = Frame::open();
        frame.close(self, (self.f)(x))
    }
}

/// All axes from one on as one axis.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Module)]
pub struct Flatten {
    /// The first axis of those that become one.
    pub start: usize,
}

impl Default for Flatten {
    fn default() -> Self {
        Self { start: 1 }
    }
}

impl Layer for Flatten {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let frame = Frame::open();
        let kept = &x.shape()[..self.start.min(x.rank())];
        let rest: usize = x.shape()[kept.len()..].iter().product();
        let shape: Vec<usize> = kept.iter().copied().chain([rest]).collect();
        frame.close(self, x.reshape(shape))
    }
}
