//! What a worker does at each step: set the weights that it pulled, compute, push.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use thalweg_core::DType;
use thalweg_data::{Batches, Dataset, Loader, Position};
use thalweg_nn::{Clip, Module, Named};
use thalweg_runtime::{RunError, Tree, jit};
use thalweg_tensor::{Tensor, no_grad};
use thalweg_train::{
    Callback, Ended, Fitted, Measure, Passes, Progress, TrainError, VALIDATION_LOSS, weights_hash,
};

use super::books::Books;
use super::loss_table;
use super::own::{MEAN, Own};
use crate::cluster::{Gradients, Program, Pulled, Run, Step};
use crate::doing::Doing;
use crate::error::ClusterError;
use crate::ids::{Clock, Slot, TableId};
use crate::layout::TableSpec;
use crate::optimise::Moved;
use crate::rule::{Rule, UpdateRule};
use crate::table::Delta;
use crate::values::Values;

/// The name of the rule that moves a parameter.
pub(super) fn rule_name(param: &str) -> String {
    format!("move {param}")
}

/// The tables of a net: what is trained, in the order of its rules; the buffers; the states of optimisers that workers
/// run, if servers keep them; the loss.
pub(super) fn tables(
    net: &impl Module,
    trained: &[Arc<Moved>],
    own: Option<&Own>,
) -> Result<Vec<TableSpec>, ClusterError> {
    let mut specs = Vec::new();
    let value = |n: &Named| match n.param.meta().dtype {
        DType::F32 => Ok(Values::of(&n.param.get())),
        other => Err(ClusterError::Dtype { name: n.name.clone(), got: other.to_string() }),
    };
    for (named, moved) in net.trainable().iter().zip(trained) {
        let rule = if own.is_some() { Rule::Add } else { Rule::Named(rule_name(&moved.name)) };
        specs.push(TableSpec::Whole { values: value(named)?, rule });
    }
    for named in net.buffers() {
        specs.push(TableSpec::Whole { values: value(&named)?, rule: Rule::Add });
    }
    for moved in trained.iter().filter(|_| own.is_some_and(Own::shares_state)) {
        let first = moved.numbers(&moved.first_state(moved.shape.numel()));
        specs.push(TableSpec::Whole { values: first.into(), rule: Rule::Named(MEAN.into()) });
    }
    specs.push(loss_table());
    Ok(specs)
}

/// A worker's side of a training.
pub(super) struct Learning<'a, N, B, L, D: Dataset> {
    pub net: &'a N,
    pub loss: &'a L,
    pub clip: Option<Clip>, // of the gradients that one worker steps by
    pub metrics: &'a [(String, Measure<N, B>)],
    pub validation: Option<&'a Passes<B>>,
    pub validate_every: Clock,
    pub callbacks: Vec<Box<dyn Callback<N>>>,
    pub batches: Batches<D>,
    pub shuffle: bool,
    pub per_epoch: u64,
    pub steps: u64,
    pub per_clock: u64, // steps between two exchanges
    pub share: f32,     // what a push counts for, when some are left out
    pub pushes: usize,  // of a clock that are a step each
    pub own: Option<Own>,
    pub books: Books,
    pub loaders: BTreeMap<Slot, (Clock, Loader<D>)>, // with the clock of the next batch
    pub problem: Option<ClusterError>,
    pub doing: Doing,
    pub end: Option<Arc<AtomicBool>>, // to be raised when a callback wants to stop
}

/// The compiled functions of a training: loss and gradients of a batch, and what is measured of one.
pub(super) struct Functions<'a, B> {
    step: Function<'a, B, (Tensor, Vec<Tensor>)>,
    measure: Function<'a, B, Vec<Tensor>>,
}

type Function<'a, B, T> = Box<dyn FnMut(B) -> Result<T, RunError> + 'a>;

/// Both together are the program.
pub(super) struct Compiled<'p, 'a, N, B, L, D: Dataset> {
    pub learning: &'p mut Learning<'a, N, B, L, D>,
    pub compiled: &'p mut Functions<'a, B>,
}

impl<'a, N, B, L, D> Learning<'a, N, B, L, D>
where
    N: Module,
    B: Tree + 'static,
    L: Fn(&N, B) -> Tensor,
    D: Dataset<Batch = B>,
{
    pub fn compile(&self) -> Functions<'a, B> {
        let (net, loss, metrics) = (self.net, self.loss, self.metrics);
        let mut step = jit(move |batch: B| {
            let loss = loss(net, batch);
            let gradients = loss.grad(&net.trainable().iter().collect::<Vec<_>>());
            (loss, gradients)
        });
        let mut measure = jit(move |batch: B| {
            let again = || batch.map(&mut Tensor::clone);
            no_grad(|| {
                let others = metrics.iter().map(|(_, measure)| measure(net, again()));
                [loss(net, again())].into_iter().chain(others).collect::<Vec<Tensor>>()
            })
        });
        net.train(true);
        Functions { step: Box::new(move |b| step.call(b)), measure: Box::new(move |b| measure.call(b)) }
    }

    /// Sets weights and buffers to what was pulled.
    fn set(&self, pulled: &Pulled) {
        let params = self.net.trainable().into_iter().chain(self.net.buffers());
        for (named, values) in params.zip(pulled.values()) {
            named.param.set(values.to_tensor(named.param.meta().shape));
        }
    }

    /// A slot's part of the batch of a clock, the number of its samples and of all; `None` when it has none.
    fn batch(&mut self, step: Step) -> Result<Option<(B, usize, usize)>, TrainError> {
        let (epoch, at) = (step.clock / self.per_epoch, (step.clock % self.per_epoch) as usize);
        let (len, size) = (self.batches.dataset().len(), self.batches.size());
        let sample = at * size;
        let all = size.min(len - sample);
        let (rank, world) = (step.slot.0 as usize, step.n_slots);
        let own = all * (rank + 1) / world - all * rank / world;
        let known = self.loaders.get(&step.slot).is_some_and(|(clock, _)| *clock == step.clock);
        if !known || at == 0 {
            let order = self.batches.clone().shard(rank, world);
            let order = if self.shuffle { order.shuffled(epoch) } else { order.epoch(epoch) };
            let here = Position { epoch, sample, ..self.batches.position() };
            self.loaders.insert(step.slot, (step.clock, order.at(here)?.into_iter()));
        }
        let (next, loader) = self.loaders.get_mut(&step.slot).expect("it was put there");
        *next = step.clock + 1;
        Ok(loader.next().filter(|_| own > 0).map(|batch| (batch, own, all)))
    }

    fn let_go(&mut self, slot: Slot) {
        self.loaders.remove(&slot);
        self.own.iter_mut().for_each(|own| own.let_go(slot));
        if slot == Slot(0) {
            self.books.let_go();
        }
    }

    /// The steps before a clock.
    fn steps_at(&self, clock: Clock) -> u64 {
        (clock * self.per_clock).min(self.steps)
    }

    /// Noise is a function of slot and clock, whoever draws it.
    fn set_noise(&self, step: Step) {
        let at = (step.clock * step.n_slots as u64 + u64::from(step.slot.0)) << 16;
        for named in self.net.noise() {
            let [a, b, ..] = named.param.get().to_array::<[u32; 4]>();
            named.param.set(Tensor::from([a, b, at as u32, (at >> 32) as u32]));
        }
    }

    fn step(
        &mut self,
        compiled: &mut Functions<'a, B>,
        step: Step,
        pulled: &Pulled,
    ) -> Result<Gradients, ClusterError> {
        self.set(pulled);
        if step.slot == Slot(0) {
            self.keep_books(compiled, step.clock, pulled)?;
        }
        if let Some(mut own) = self.own.take() {
            let pushed = self.own_steps(compiled, &mut own, step, pulled);
            self.own = Some(own);
            return pushed;
        }
        self.set_noise(step);
        self.doing.begin("loading");
        let Some((batch, own, all)) = self.batch(step)? else { return Ok(Gradients::new()) };
        self.doing.begin("forward and backward");
        let (loss, gradients) = (compiled.step)(batch).map_err(TrainError::from)?;
        let share = own as f32 / all as f32 * self.share;
        let dense = |values: Vec<f32>| Delta::Dense(values.into());
        let weight = f64::from(share) * self.pushes as f64;
        let gradients = self.bounded(gradients.iter().map(|g| g * weight).collect());
        let mut deltas: Vec<Delta> = gradients.iter().map(|g| Delta::Dense(Values::of(g))).collect();
        let before = pulled.values().skip(deltas.len());
        for (named, old) in self.net.buffers().iter().zip(before) {
            let new = named.param.get().to_vec::<f32>();
            deltas.push(dense(new.iter().zip(old.iter()).map(|(n, o)| (n - o) * share).collect()));
        }
        deltas.push(dense(vec![loss.to_dtype(DType::F32).item::<f32>() * share]));
        Ok((0..).map(TableId).zip(deltas).collect())
    }

    /// The gradients of a step that is this worker's alone.
    fn bounded(&self, gradients: Vec<Tensor>) -> Vec<Tensor> {
        self.clip.map(|clip| clip.apply(&gradients)).unwrap_or(gradients)
    }

    /// The steps of a clock that a slot takes without asking anybody.
    fn own_steps(
        &mut self,
        compiled: &mut Functions<'a, B>,
        own: &mut Own,
        step: Step,
        pulled: &Pulled,
    ) -> Result<Gradients, ClusterError> {
        let (from, to) = (self.steps_at(step.clock), self.steps_at(step.clock + 1));
        let (trained, buffers) = (self.net.trainable(), self.net.buffers());
        let common: Vec<&Values> = pulled.values().collect();
        let mut copied = own.begin(step.slot, from, &common, buffers.len());
        for (named, values) in
            trained.iter().chain(&buffers).zip(copied.weights.iter().chain(&copied.buffers))
        {
            named.param.set(Tensor::from_slice(values, named.param.meta().shape));
        }
        let mut loss = 0.0;
        for clock in from..to {
            let one = Step { clock, ..step };
            self.set_noise(one);
            self.doing.begin("loading");
            let Some((batch, samples, all)) = self.batch(one)? else { continue };
            self.doing.begin("forward and backward");
            let (found, gradients) = (compiled.step)(batch).map_err(TrainError::from)?;
            loss += found.to_dtype(DType::F32).item::<f32>() * samples as f32 / all as f32;
            for (i, (named, gradient)) in trained.iter().zip(&self.bounded(gradients)).enumerate() {
                own.move_one(&mut copied, i, clock + 1, &gradient.to_vec::<f32>());
                named.param.set(Tensor::from_slice(&copied.weights[i], named.param.meta().shape));
            }
        }
        for (named, values) in buffers.iter().zip(&mut copied.buffers) {
            *values = named.param.get().to_vec::<f32>();
        }
        let mut pushed = own.end(step.slot, step.n_slots, copied, &common);
        pushed.push(vec![loss / (to - from).max(1) as f32]);
        let dense = |values: Vec<f32>| Delta::Dense(values.into());
        Ok((0..).map(TableId).zip(pushed.into_iter().map(dense)).collect())
    }

    /// At the first slot: the loss of the steps before, validation, checkpoints.
    fn keep_books(
        &mut self,
        compiled: &mut Functions<'a, B>,
        clock: Clock,
        pulled: &Pulled,
    ) -> Result<(), ClusterError> {
        let here = self.batches.position();
        let before = self.steps_at(clock.saturating_sub(1));
        let clock = self.steps_at(clock);
        let passed = |every: u64| clock / every > before / every;
        let loss = pulled.values().next_back().map_or(f32::NAN, |v: &Values| v[0]);
        let Some(books) = self.books.at(clock, f64::from(loss), Some(here))? else { return Ok(()) };
        books.begin(&mut self.callbacks);
        if clock > 0 && !loss.is_finite() {
            return Err(TrainError::Diverged { step: clock, loss: loss.into() }.into());
        }
        // A run that was taken back to this step, or has another keeper since.
        let again = books.is_measured(clock);
        let ends_epoch = passed(self.per_epoch);
        let is_due = !again && clock > 0 && (passed(self.validate_every) || clock == self.steps);
        if is_due && let Some(validation) = self.validation {
            self.doing.begin("validation");
            self.net.eval();
            let names = [VALIDATION_LOSS].into_iter().chain(self.metrics.iter().map(|(n, _)| n.as_str()));
            let names: Vec<&str> = names.collect();
            let (mut sums, mut samples) = (vec![0.0; names.len()], 0);
            for (n, batch) in validation() {
                let found = (compiled.measure)(batch).map_err(TrainError::from)?;
                let values = found.into_iter().map(|v| v.to_dtype(DType::F64).item::<f64>());
                sums.iter_mut().zip(values).for_each(|(s, v)| *s += n as f64 * v);
                samples += n;
            }
            self.net.train(true);
            let means = sums.iter().map(|s| s / samples as f64);
            books.measured(&names.into_iter().map(str::to_owned).zip(means).collect())?;
        }
        let noise = self.net.noise().into_iter().map(|n| (n.name, n.param.get())).collect();
        books.checkpoints(noise)?;
        if clock > 0 && !again && !self.callbacks.is_empty() {
            let (own_steps, own_seconds) = books.own(clock);
            let (metrics, epoch) = (books.state.metrics.clone(), books.state.epoch());
            let (step, steps, loss) = (clock, self.steps, loss.into());
            let now = Progress { step, steps, epoch, loss, metrics, own_steps, own_seconds };
            for callback in &mut self.callbacks {
                let mut stop = callback.after_step(&now, self.net);
                if is_due && stop.is_continue() {
                    stop = callback.measured(&now, self.net);
                }
                if ends_epoch && stop.is_continue() {
                    stop = callback.after_epoch(&now, self.net);
                }
                if stop == ControlFlow::Break(()) {
                    match &self.end {
                        Some(end) => end.store(true, Ordering::Relaxed),
                        None => return Err(ClusterError::Interrupted { clock }),
                    }
                }
            }
        }
        Ok(())
    }

    /// Everybody was asked to end at this clock.
    fn stop(&mut self, clock: Clock, pulled: &Pulled) -> Result<bool, ClusterError> {
        let loss = pulled.values().next_back().map_or(f32::NAN, |v: &Values| v[0]);
        let noise: Vec<_> = self.net.noise().into_iter().map(|n| (n.name, n.param.get())).collect();
        let (clock, here) = (self.steps_at(clock), self.batches.position());
        self.books.stop(clock, loss.into(), Some(here), &noise)
    }

    /// The end of a run, with the final weights.
    pub fn finish(&mut self, run: &Run, keeper: bool) -> Result<Fitted, ClusterError> {
        if self.steps_at(run.clock) < self.steps {
            return Ok(Fitted::stopped(self.steps_at(run.clock)));
        }
        self.set(&run.pulled);
        let seconds = run.elapsed.as_secs_f64();
        let mut fitted = Fitted {
            ended: Ended::Done,
            steps: self.steps,
            epochs: self.steps / self.per_epoch,
            loss: run.pulled.values().next_back().map_or(f64::NAN, |v| v[0].into()),
            metrics: BTreeMap::new(),
            seconds,
            steps_per_second: self.steps as f64 / seconds.max(1e-9),
            weights: String::new(),
        };
        if keeper {
            let mut compiled = self.compile();
            self.keep_books(&mut compiled, self.steps.div_ceil(self.per_clock), &run.pulled)?;
            self.net.eval();
            fitted.weights = weights_hash(self.net);
            let noise = self.net.noise().into_iter().map(|n| (n.name, n.param.get())).collect();
            self.books.close(&mut fitted, self.net, noise)?;
            self.net.train(true);
        }
        fitted.weights = weights_hash(self.net);
        Ok(fitted)
    }
}

impl<N, B, L, D> Program for Compiled<'_, '_, N, B, L, D>
where
    N: Module,
    B: Tree + 'static,
    L: Fn(&N, B) -> Tensor,
    D: Dataset<Batch = B>,
{
    fn compute(&mut self, step: Step, pulled: &Pulled) -> Gradients {
        self.learning.step(self.compiled, step, pulled).unwrap_or_else(|problem| {
            self.learning.problem = Some(problem);
            Gradients::new()
        })
    }

    /// Changes of weights and buffers may come late, but neither the loss nor states of optimisers, which take the place
    /// of what was there.
    fn is_exact(&self, table: TableId) -> bool {
        let net = self.learning.net;
        table.0 as usize >= net.trainable().len() + net.buffers().len()
    }

    fn began(&mut self, clock: Clock) {
        self.learning.books.began = self.learning.steps_at(clock);
    }

    fn let_go(&mut self, slot: Slot) {
        self.learning.let_go(slot);
    }

    fn saved(&self) -> Option<Clock> {
        self.learning.books.saved().map(|steps| steps / self.learning.per_clock)
    }

    fn secured(&mut self, clock: Clock) {
        self.learning.books.secured = clock * self.learning.per_clock;
    }

    fn stop(&mut self, step: Step, pulled: &Pulled) -> Result<bool, ClusterError> {
        self.learning.stop(step.clock, pulled)
    }

    fn watch(&mut self, doing: &Doing) {
        self.learning.doing = doing.clone();
    }

    fn problem(&mut self) -> Option<ClusterError> {
        self.learning.problem.take()
    }
}
