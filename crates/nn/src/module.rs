//! What every part of a model can do: name its parameters, change its mode, be frozen.

use std::collections::HashSet;
use std::sync::Mutex;

use thalweg_tensor::{Leaf, Param, Rng, Switch, Tensor};

use crate::summary::{Summary, summarize};

/// A model or a part of one. `#[derive(Module)]` implements it for a struct whose fields are modules:
/// layers, [`Param`]s, and options, boxes, lists, arrays and pairs of them.
///
/// Names are the path of fields, joined by dots: `encoder.layers.0.weight`. They depend on the
/// struct alone, so weights that were saved yesterday load tomorrow. A parameter that is reached
/// twice (tied weights) is listed once, under its first name.
///
/// ```
/// extern crate thalweg_nn as thalweg; // programs use the crate `thalweg`
/// use thalweg_nn::{Linear, Module};
/// use thalweg_tensor::Rng;
///
/// #[derive(Module)]
/// struct Net {
///     hidden: Linear,
///     output: Linear,
/// }
///
/// let mut rng = Rng::seed(0);
/// let net = Net { hidden: Linear::new(4, 3, &mut rng), output: Linear::new(3, 2, &mut rng) };
/// let names: Vec<String> = net.params().into_iter().map(|p| p.name).collect();
/// assert_eq!(names, ["hidden.weight", "hidden.bias", "output.weight", "output.bias"]);
/// assert_eq!(net.n_params(), 4 * 3 + 3 + 3 * 2 + 2);
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is no module",
    note = "derive it with `#[derive(Module)]`, or mark a field that holds configuration with `#[module(skip)]`"
)]
pub trait Module {
    /// Shows the parts, in a fixed order and under fixed names.
    fn visit(&self, visitor: &mut Visitor<'_>);

    /// The name of the type, without its path.
    fn kind(&self) -> String {
        short_name(std::any::type_name::<Self>())
    }

    /// Everything that a file of weights holds: parameters and buffers.
    fn state(&self) -> Vec<Named> {
        let mut found = Vec::new();
        let mut seen = HashSet::new();
        self.visit(&mut Visitor::new(&mut |path, part| {
            if let Part::Param(param) = part
                && seen.insert(param.id())
            {
                let name = if path.is_empty() { param.name() } else { path };
                found.push(Named { name: name.to_owned(), param: param.clone() });
            }
        }));
        found
    }

    /// What is trained, frozen or not.
    fn params(&self) -> Vec<Named> {
        self.state().into_iter().filter(|p| !p.param.is_state()).collect()
    }

    /// What is trained and not frozen.
    fn trainable(&self) -> Vec<Named> {
        self.state().into_iter().filter(|p| p.param.is_trainable()).collect()
    }

    /// State that is not trained, such as running statistics.
    fn buffers(&self) -> Vec<Named> {
        self.state().into_iter().filter(|p| p.param.is_state()).collect()
    }

    /// The number of trained numbers, frozen or not.
    fn n_params(&self) -> usize {
        self.params().iter().map(|p| p.param.meta().numel()).sum()
    }

    /// Switches dropout and batch statistics on (as a new module has them) or off. A compiled function
    /// is compiled once for each mode.
    fn train(&self, on: bool) {
        self.visit(&mut Visitor::new(&mut |_, part| {
            if let Part::Mode(mode) = part {
                mode.0.turn(on);
            }
        }));
    }

    /// [`Module::train`] off: how a model is used once it is trained.
    fn eval(&self) {
        self.train(false);
    }

    /// Takes all parameters out of training; [`Module::unfreeze`] brings them back.
    fn freeze(&self) {
        self.params().iter().for_each(|p| p.param.freeze(true));
    }

    /// Brings all parameters back into training.
    fn unfreeze(&self) {
        self.params().iter().for_each(|p| p.param.freeze(false));
    }

    /// Runs `forward` once and tells what each part of this module did: a table of outputs, parameters
    /// and work, to be printed.
    ///
    /// ```
    /// use thalweg_nn::{Activation, Layer, Linear, Module, Sequential};
    /// use thalweg_tensor::{Rng, Tensor};
    ///
    /// let mut rng = Rng::seed(0);
    /// let net = Sequential::new()
    ///     .then(Linear::new(4, 3, &mut rng))
    ///     .then(Activation::Relu)
    ///     .then(Linear::new(3, 2, &mut rng));
    /// let table = net.summary(|| net.forward(&Tensor::from([[0.0f32; 4]; 10])));
    /// assert_eq!(table.rows[0].n_params, 4 * 3 + 3 + 3 * 2 + 2);
    /// assert!(table.to_string().contains("[10, 3]"));
    /// ```
    fn summary(&self, forward: impl FnOnce() -> Tensor) -> Summary
    where
        Self: Sized,
    {
        summarize(self, forward)
    }

    /// The state of each source of random numbers, by name. With the weights it decides what a model does
    /// next, so a checkpoint holds it; a file of weights does not.
    fn noise(&self) -> Vec<Named> {
        let mut found = Vec::new();
        self.visit(&mut Visitor::new(&mut |path, part| {
            if let Part::Noise(noise) = part {
                found.push(Named { name: path.to_owned(), param: noise.with(|rng| rng.state().clone()) });
            }
        }));
        found
    }
}

/// A module that maps one tensor to one tensor: what [`Sequential`](crate::Sequential) chains.
pub trait Layer: Module {
    /// The result for one input.
    fn forward(&self, x: &Tensor) -> Tensor;
}

/// A parameter with its full name.
#[derive(Debug, Clone)]
pub struct Named {
    /// The path of fields that leads to it.
    pub name: String,
    /// The parameter itself.
    pub param: Param,
}

impl Leaf for Named {
    fn leaf(&self) -> Tensor {
        self.param.get()
    }
    fn leaf_name(&self) -> Option<&str> {
        Some(&self.name)
    }
}

/// What a visitor meets.
pub enum Part<'a> {
    /// Any module, before its own parts.
    Module(Identity),
    /// A parameter or buffer.
    Param(&'a Param),
    /// A switch between training and use.
    Mode(&'a Mode),
    /// A source of random numbers.
    Noise(&'a Noise),
}

/// Which module: its place in memory and its type. (A struct lies where its first field lies.)
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Identity {
    address: usize,
    /// The name of its type.
    pub kind: String,
}

impl Identity {
    /// Of this module, as long as it is not moved.
    pub fn of<M: Module + ?Sized>(module: &M) -> Self {
        Self { address: std::ptr::from_ref(module).cast::<()>().addr(), kind: module.kind() }
    }
}

/// Walks through a module and keeps the path.
pub struct Visitor<'a> {
    path: String,
    see: &'a mut dyn FnMut(&str, Part<'_>),
}

impl<'a> Visitor<'a> {
    /// A visitor that calls `see` with the path of each part.
    pub fn new(see: &'a mut dyn FnMut(&str, Part<'_>)) -> Self {
        Self { path: String::new(), see }
    }

    /// Visits a part under its name.
    pub fn part<M: Module + ?Sized>(&mut self, name: &str, part: &M) {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        self.inside(part);
        self.path.truncate(length);
    }

    /// Visits what a wrapper holds, under the wrapper's own name.
    pub fn inside<M: Module + ?Sized>(&mut self, part: &M) {
        (self.see)(&self.path, Part::Module(Identity::of(part)));
        part.visit(self);
    }

    fn leaf(&mut self, part: Part<'_>) {
        (self.see)(&self.path, part);
    }
}

/// Whether a layer is being trained. New ones are.
#[derive(Debug)]
pub struct Mode(Switch);

impl Mode {
    /// Whether it is being trained.
    pub fn is_training(&self) -> bool {
        self.0.is_on()
    }
}

impl Default for Mode {
    fn default() -> Self {
        Self(Switch::new("the training mode of a layer", true))
    }
}

/// A layer's own source of random numbers.
pub struct Noise(Mutex<Rng>);

impl std::fmt::Debug for Noise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Noise")
    }
}

impl Noise {
    /// A source that has nothing to do with others split from the same one.
    pub fn new(rng: &mut Rng) -> Self {
        Self(Mutex::new(rng.split()))
    }

    /// Draws from it.
    pub fn with<R>(&self, draw: impl FnOnce(&mut Rng) -> R) -> R {
        draw(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}

impl Module for Param {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.leaf(Part::Param(self));
    }
}

impl Module for Mode {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.leaf(Part::Mode(self));
    }
}

impl Module for Noise {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.leaf(Part::Noise(self));
    }
}

impl<M: Module> Module for Option<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        if let Some(module) = self {
            visitor.inside(module);
        }
    }
}

macro_rules! pointers {
    ($($pointer:ty),*) => {$(
        impl<M: Module + ?Sized> Module for $pointer {
            fn visit(&self, visitor: &mut Visitor<'_>) {
                visitor.inside(&**self);
            }
            fn kind(&self) -> String {
                (**self).kind()
            }
        }
    )*};
}

pointers!(&M, Box<M>, std::sync::Arc<M>);

impl<M: Module> Module for [M] {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        for (i, module) in self.iter().enumerate() {
            visitor.part(&i.to_string(), module);
        }
    }
}

impl<M: Module> Module for Vec<M> {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self[..].visit(visitor);
    }
}

impl<M: Module, const N: usize> Module for [M; N] {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        self[..].visit(visitor);
    }
}

impl<A: Module, B: Module> Module for (A, B) {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.part("0", &self.0);
        visitor.part("1", &self.1);
    }
}

impl<A: Module, B: Module, C: Module> Module for (A, B, C) {
    fn visit(&self, visitor: &mut Visitor<'_>) {
        visitor.part("0", &self.0);
        visitor.part("1", &self.1);
        visitor.part("2", &self.2);
    }
}

/// Numbers and text beside the layers are configuration: nothing to visit.
macro_rules! configuration {
    ($($t:ty),*) => {$(
        impl Module for $t {
            fn visit(&self, _: &mut Visitor<'_>) {}
        }
    )*};
}

configuration!((), bool, i32, i64, u32, u64, usize, isize, f32, f64, String, &'static str);

/// `thalweg_nn::layers::conv::Conv<2>` is `Conv2d`.
fn short_name(full: &str) -> String {
    let (path, arguments) = full.split_once('<').map_or((full, ""), |(p, a)| (p, a));
    let name = path.rsplit("::").next().unwrap_or(path);
    match arguments.strip_suffix('>') {
        Some(n) if n.parse::<u8>().is_ok() => format!("{name}{n}d"),
        _ => name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::{Module, short_name};
    use crate::{Dropout, Linear};
    use thalweg_core::DType;
    use thalweg_derive::Module;
    use thalweg_tensor::{Param, Rng, Tensor};

    #[derive(Module)]
    struct Block {
        layers: Vec<Linear>,
        gate: Option<Linear>,
        none: Option<Linear>,
        scale: Param,
        #[module(flatten)]
        inner: Box<Linear>,
        #[module(skip)]
        label: std::time::Duration,
        width: usize,
        drop: Dropout,
    }

    fn block(rng: &mut Rng) -> Block {
        Block {
            layers: vec![Linear::new(2, 2, rng), Linear::without_bias(2, 2, rng)],
            gate: Some(Linear::without_bias(2, 2, rng)),
            none: None,
            scale: Param::new("scale", Tensor::ones([2], DType::F32)),
            inner: Box::new(Linear::without_bias(2, 1, rng)),
            label: std::time::Duration::ZERO,
            width: 2,
            drop: Dropout::new(0.5, rng),
        }
    }

    fn names(module: &dyn Module) -> Vec<String> {
        module.params().into_iter().map(|p| p.name).collect()
    }

    #[test]
    fn names_follow_the_fields() {
        let b = block(&mut Rng::seed(1));
        assert_eq!(b.label.as_secs() + b.width as u64 + b.none.iter().count() as u64, 2);
        assert_eq!(
            names(&b),
            ["layers.0.weight", "layers.0.bias", "layers.1.weight", "gate.weight", "scale", "weight"]
        );
        assert_eq!(names(&(&b.scale, &b.inner)), ["0", "1.weight"]);
        assert_eq!(names(&b.scale), ["scale"], "alone, a parameter goes by its own name");
    }

    #[test]
    fn tied_weights_are_listed_once() {
        let mut rng = Rng::seed(1);
        let one = Linear::new(2, 2, &mut rng);
        let other = Linear { weight: one.weight.clone(), ..Linear::new(2, 2, &mut rng) };
        assert_eq!(names(&(&one, &other)), ["0.weight", "0.bias", "1.bias"]);
        assert_eq!((&one, &other).n_params(), 8);
    }

    #[test]
    fn a_frozen_part_is_no_longer_trainable_and_gets_no_gradient() {
        let b = block(&mut Rng::seed(1));
        b.layers.freeze();
        assert_eq!(b.trainable().len(), 3);
        assert_eq!(b.params().len(), 6);
        assert!(!b.layers[0].weight.get().is_tracked());
        b.unfreeze();
        assert_eq!(b.trainable().len(), 6);
        assert!(b.layers[0].weight.get().is_tracked());
    }

    #[test]
    fn noise_continues_where_it_was_saved() {
        use crate::Layer;
        let b = block(&mut Rng::seed(1));
        let x = Tensor::ones([64], DType::F32);
        b.drop.forward(&x);
        let noise = &b.noise()[0];
        let saved = noise.param.get();
        assert_eq!(noise.name, "drop.noise");
        let next = b.drop.forward(&x).to_vec::<f32>();
        b.drop.forward(&x);
        noise.param.set(saved);
        assert_eq!(b.drop.forward(&x).to_vec::<f32>(), next);
    }

    #[test]
    fn kinds_are_named_as_users_call_them() {
        assert_eq!(short_name("thalweg_nn::layers::conv::Conv<2>"), "Conv2d");
        assert_eq!(short_name("alloc::vec::Vec<a::B>"), "Vec");
        assert_eq!(short_name("Net"), "Net");
    }
}
