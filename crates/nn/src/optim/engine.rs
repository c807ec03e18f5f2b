//! The engine that every optimiser runs on.

use std::collections::BTreeMap;
use std::panic::Location;
use std::path::Path;

use thalweg_core::DType;
use thalweg_tensor::{OpError, Param, Tensor, no_grad};

use crate::clip::Clip;
use crate::error::NnError;
use crate::module::{Module, Named};
use crate::optim::group::{Decay, Group};
use crate::optim::slots::Slots;
use crate::schedule::Schedule;
use crate::summary::caller_line;
use crate::weights::{read_tensors, save_named, set_named};

/// How one parameter moves. This is all that a new optimiser needs:
///
/// ```
/// use thalweg_nn::{Optimizer, Rule, Slots};
/// use thalweg_tensor::{Param, Tensor};
///
/// struct HeavyBall {
///     friction: f64,
/// }
///
/// impl Rule for HeavyBall {
///     fn update(&self, weight: &Tensor, gradient: &Tensor, slots: &mut Slots<'_>) -> Tensor {
///         let speed = slots.zeros("speed");
///         speed.set(speed.get() * (1.0 - self.friction) - gradient * slots.lr());
///         weight + speed.get()
///     }
/// }
///
/// let w = Param::new("w", Tensor::from([4.0f32, -3.0]));
/// let mut opt = Optimizer::new(HeavyBall { friction: 0.1 }, 0.1);
/// for _ in 0..200 {
///     let loss = w.get().square().sum(());
///     opt.step(&w, &loss);
/// }
/// assert!(w.get().abs().amax(()).item::<f32>() < 1e-3);
/// ```
pub trait Rule {
    /// The new weight. Slots are read and set; values are never looked at, so that the same code can be
    /// compiled.
    fn update(&self, weight: &Tensor, gradient: &Tensor, slots: &mut Slots<'_>) -> Tensor;

    /// How weights are drawn towards 0 unless told otherwise.
    fn decay(&self) -> Decay {
        Decay::L2(0.0)
    }
}

/// An optimiser: a [`Rule`] with its learning rate, its groups and what it remembers.
///
/// The learning rate and the number of steps are [`Param`]s, so a compiled step follows them. The
/// number of steps is that of the optimiser: a parameter that is unfrozen late starts its averages
/// late, without their correction; give such parameters an optimiser of their own.
///
/// ```
/// use thalweg_nn::{Adam, Linear, Layer};
/// use thalweg_tensor::{Reduction, Rng, Tensor};
///
/// let net = Linear::new(2, 1, &mut Rng::seed(0));
/// let mut opt = Adam::new(0.05).clip_norm(1.0);
/// let (x, y) = (Tensor::from([[1.0f32, 2.0], [3.0, -1.0]]), Tensor::from([[1.0f32], [-1.0]]));
/// for _ in 0..300 {
///     let loss = net.forward(&x).mse_loss(&y, Reduction::Mean);
///     opt.step(&net, &loss);
/// }
/// assert!(net.forward(&x).mse_loss(&y, Reduction::Mean).item::<f32>() < 1e-3);
/// ```
pub struct Optimizer<R> {
    rule: R,
    base_lr: f64,
    lr: Param,
    step: Param,
    decay: Decay,
    groups: Vec<Group>,
    clip: Option<Clip>,
    maximize: bool,
    slots: BTreeMap<String, Param>,
}

impl<R: Rule> Optimizer<R> {
    /// Runs a rule with a learning rate.
    pub fn new(rule: R, lr: f64) -> Self {
        let number = |name: &str, value: f64| Param::state(name, Tensor::full((), value, DType::F64));
        Self {
            decay: rule.decay(),
            rule,
            base_lr: lr,
            lr: number("lr", lr),
            step: number("step", 0.0),
            groups: Vec::new(),
            clip: None,
            maximize: false,
            slots: BTreeMap::new(),
        }
    }

    /// Draws weights towards 0 by this share, in the way that is usual for the rule.
    pub fn weight_decay(mut self, share: f64) -> Self {
        self.decay = self.decay.with(share);
        self
    }

    /// Draws weights towards 0 in this way.
    pub fn decay(mut self, decay: Decay) -> Self {
        self.decay = decay;
        self
    }

    /// Gives some parameters settings of their own.
    pub fn group(mut self, group: Group) -> Self {
        self.groups.push(group);
        self
    }

    /// Scales all gradients down together when their common 2-norm passes `max`.
    pub fn clip_norm(self, max: f64) -> Self {
        self.clip(Clip::Norm { max, p: 2.0 })
    }

    /// Keeps every element of every gradient between ±`max`.
    pub fn clip_value(self, max: f64) -> Self {
        self.clip(Clip::Value(max))
    }

    /// Clips gradients before anything else is done with them.
    pub fn clip(mut self, clip: Clip) -> Self {
        self.clip = Some(clip);
        self
    }

    /// How gradients are clipped, if they are.
    pub fn clipping(&self) -> Option<Clip> {
        self.clip
    }

    /// Climbs instead of descending.
    pub fn maximize(mut self) -> Self {
        self.maximize = true;
        self
    }

    /// The rule that is run.
    pub fn rule(&self) -> &R {
        &self.rule
    }

    /// The rule, for changing its settings.
    pub(super) fn rule_mut(&mut self) -> &mut R {
        &mut self.rule
    }

    /// Moves every trainable parameter of `net` against its gradient of `loss`. Panics, naming it, for
    /// a parameter that the loss does not depend on.
    #[track_caller]
    pub fn step(&mut self, net: &(impl Module + ?Sized), loss: &Tensor) {
        if let Err(error) = self.try_step(net, loss) {
            panic!("{error}");
        }
    }

    /// [`Optimizer::step`] as a `Result`; an error leaves everything as it was.
    #[track_caller]
    pub fn try_step(&mut self, net: &(impl Module + ?Sized), loss: &Tensor) -> Result<(), OpError> {
        let params = net.trainable();
        let gradients = loss.try_grad(&params.iter().collect::<Vec<_>>())?;
        let _line = caller_line(Location::caller());
        self.update(&params, &gradients);
        Ok(())
    }

    /// One step with gradients from elsewhere: one for each of `net.trainable()`, in its order. Panics
    /// when their number or a shape differs.
    #[track_caller]
    pub fn step_with(&mut self, net: &(impl Module + ?Sized), gradients: &[Tensor]) {
        let params = net.trainable();
        let (want, got) = (params.len(), gradients.len());
        assert!(want == got, "step_with: {want} trainable parameters and {got} gradients");
        for (p, g) in params.iter().zip(gradients) {
            let shape = p.param.meta().shape;
            assert!(
                shape == *g.shape(),
                "step_with: `{}` has shape {shape} and its gradient {}",
                p.name,
                g.shape()
            );
        }
        let _line = caller_line(Location::caller());
        self.update(&params, gradients);
    }

    fn update(&mut self, params: &[Named], gradients: &[Tensor]) {
        no_grad(|| {
            let clipped = self.clip.as_ref().map(|clip| clip.apply(gradients));
            let gradients = clipped.as_deref().unwrap_or(gradients);
            self.step.set(self.step.get() + 1.0);
            for (p, g) in params.iter().zip(gradients) {
                self.update_one(p, g);
            }
        });
    }

    /// Returns the slots that were made on the way, with what they started from.
    fn update_one(&mut self, Named { name, param }: &Named, gradient: &Tensor) -> Vec<(Param, Tensor)> {
        let mut weight = param.get().stop_gradient();
        let group = self.groups.iter().find(|g| g.has(name, weight.shape()));
        let (lr, step) = (self.lr.get() * group.map_or(1.0, |g| g.lr_factor), self.step.get());
        let decay = group.and_then(|g| g.weight_decay).map_or(self.decay, |share| self.decay.with(share));
        let mut gradient = gradient.to_dtype(weight.dtype());
        if self.maximize {
            gradient = -gradient;
        }
        match decay {
            Decay::L2(share) | Decay::Decoupled(share) if share == 0.0 => {}
            Decay::L2(share) => gradient = gradient + &weight * share,
            Decay::Decoupled(share) => weight = &weight * (1.0 - &lr * share).to_dtype(weight.dtype()),
        }
        let meta = weight.meta().clone();
        let table = &mut self.slots;
        let mut slots = Slots { name, meta, table, made: Vec::new(), lr: &lr, step: &step };
        let moved = self.rule.update(&weight, &gradient, &mut slots);
        let made = slots.made;
        param.set(moved);
        made
    }

    /// The present learning rate.
    pub fn lr(&self) -> f64 {
        self.lr.get().item()
    }

    /// Sets the learning rate; a compiled step follows.
    pub fn set_lr(&self, lr: f64) {
        self.lr.set(Tensor::full((), lr, DType::F64));
    }

    /// Sets the learning rate to what a schedule says of a step; the first is 0.
    pub fn follow(&self, schedule: &(impl Schedule + ?Sized), step: u64) {
        self.set_lr(schedule.lr(step, self.base_lr));
    }

    /// How many steps were made.
    pub fn steps(&self) -> u64 {
        self.step.get().item::<f64>() as u64
    }

    /// Makes the slots of all trainable parameters that have none yet, as the first step would.
    pub fn prepare(&mut self, net: &(impl Module + ?Sized)) {
        no_grad(|| {
            for named in net.trainable() {
                let before = named.param.get();
                let slots: Vec<(Param, Tensor)> =
                    self.of(&named.name).map(|p| (p.clone(), p.get())).collect();
                // A step without gradient shows which slots there are; then all is put back.
                let made = self.update_one(&named, &before.zeros_like());
                slots.into_iter().chain(made).for_each(|(slot, start)| slot.set(start));
                named.param.set(before);
            }
        });
    }

    /// The slots of one parameter.
    fn of(&self, name: &str) -> impl Iterator<Item = &Param> {
        let own = format!("{name}.");
        self.slots.iter().filter(move |(slot, _)| slot.starts_with(&own)).map(|(_, p)| p)
    }

    /// Everything that a checkpoint holds: `lr`, `step`, and the slots, called `<parameter>.<slot>`.
    pub fn state(&self) -> Vec<Named> {
        let named = |name: &str, param: &Param| Named { name: name.to_owned(), param: param.clone() };
        let numbers = [named("lr", &self.lr), named("step", &self.step)];
        numbers.into_iter().chain(self.slots.iter().map(|(name, p)| named(name, p))).collect()
    }

    /// Writes [`Optimizer::state`] to a safetensors file.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<(), NnError> {
        save_named(&self.state(), path)
    }

    /// Reads what [`Optimizer::save`] wrote, for the same rule on the same net. If any tensor is
    /// missing, unexpected or of another shape, the error lists all of them and nothing is changed.
    pub fn load(&mut self, path: impl AsRef<Path>, net: &(impl Module + ?Sized)) -> Result<(), NnError> {
        let path = path.as_ref();
        self.set_state(&read_tensors(path)?, net, &path.display().to_string())
    }

    /// [`Optimizer::load`] from tensors by name; `source` is what an error calls them.
    pub fn set_state(
        &mut self,
        tensors: &BTreeMap<String, Tensor>,
        net: &(impl Module + ?Sized),
        source: &str,
    ) -> Result<(), NnError> {
        let known = self.slots.clone();
        self.prepare(net);
        set_named(&self.state(), tensors, source).inspect_err(|_| self.slots = known)
    }
}
