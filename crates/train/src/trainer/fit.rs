//! The loop.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Instant;

use thalweg_core::DType;
use thalweg_data::{Batches, Dataset, Position};
use thalweg_nn::{Module, Optimizer, Rule, save_weights};
use thalweg_runtime::{Tree, jit};
use thalweg_tensor::{Tensor, no_grad};

use super::callback::{Callback, Progress};
use super::fitted::{Ended, Fitted, weights_hash};
use super::span::Span;
use super::state::State;
use super::{Trainer, VALIDATION_LOSS};
use crate::checkpoint::{Best, Checkpoints, Keep};
use crate::error::TrainError;
use crate::run::Run;

impl<N, R, B, L> Trainer<N, R, B, L>
where
    N: Module,
    R: Rule,
    B: Tree + 'static,
    L: Fn(&N, B) -> Tensor,
{
    /// Trains until training has this length in all, counting what a resumed run did before; or until it ends early, or a
    /// callback stops it.
    ///
    /// What comes out depends on the net, the optimiser, the data and the seed of the batches only: a run that was
    /// stopped, or killed and resumed at a checkpoint, ends with the same bits as one that was not.
    pub fn fit<D>(&mut self, batches: Batches<D>, length: impl Into<Span>) -> Result<Fitted, TrainError>
    where
        D: Dataset<Batch = B>,
    {
        let length = length.into();
        let (watched, best) = self.watched()?;
        let per_epoch = batches.clone().epoch(0).steps() as u64;
        if per_epoch == 0 {
            return Err(TrainError::NoBatch { samples: batches.dataset().len(), size: batches.size() });
        }
        // A run that starts and one that resumes have the same slots from the first step on.
        self.optimizer.get_mut().prepare(&self.net);
        let mut state = State { position: Some(batches.position()), ..State::default() };
        let mut files = self.open(best, &mut state)?;

        let Self { net, optimizer, loss, metrics, validation, schedule, callbacks, .. } = self;
        let (net, optimizer, loss, metrics) = (&*net, &*optimizer, &*loss, &*metrics);
        let one_step = |batch: B| {
            let loss = loss(net, batch);
            optimizer.borrow_mut().step(net, &loss);
            loss
        };
        let measure = |batch: B| {
            let again = || batch.map(&mut Tensor::clone);
            no_grad(|| {
                let others = metrics.iter().map(|(_, measure)| measure(net, again()));
                [loss(net, again())].into_iter().chain(others).collect::<Vec<Tensor>>()
            })
        };
        let (mut step, mut measured) = (jit(one_step), jit(measure));
        let mut watch =
            Watch { callbacks, steps: length.steps(per_epoch), began: Instant::now(), own_steps: 0 };
        let mut ended = Ended::Done;
        net.train(true);

        while !length.is_reached(state.step, state.epoch()) {
            if self.patience.is_some_and(|p| state.stale >= p) {
                ended = Ended::Early;
                break;
            }
            let here = state.position.unwrap_or_else(|| batches.position());
            let order = if self.shuffle { batches.clone().shuffled(here.epoch) } else { batches.clone() };
            let mut epoch = order.at(here)?.into_iter();
            while let Some(batch) = epoch.next() {
                if let Some(schedule) = schedule {
                    optimizer.borrow().follow(&**schedule, state.step);
                }
                let loss = if self.eager { one_step(batch) } else { step.call(batch)? };
                let loss: f64 = loss.to_dtype(DType::F64).item();
                if !loss.is_finite() {
                    return Err(TrainError::Diverged { step: state.step + 1, loss });
                }
                state.step += 1;
                state.position = Some(epoch.position());
                state.pending = (state.pending.0 + 1, state.pending.1 + loss);
                if state.step.is_multiple_of(self.log_every) {
                    files.log_loss(&mut state)?;
                }
                if watch.after_step(&state, loss, net).is_break() {
                    ended = Ended::Stopped;
                }
                let over = ended == Ended::Stopped || length.is_reached(state.step, here.epoch);
                if over || epoch.len() == 0 {
                    break;
                }
                if matches!(self.every, Span::Steps(n) if state.step.is_multiple_of(n.max(1))) {
                    files.save(&state, net, optimizer, None)?;
                }
            }
            if epoch.len() > 0 {
                break; // in the middle of an epoch: at the wanted step, or stopped
            }
            state.position = Some(Position { epoch: here.epoch + 1, sample: 0, ..here });
            files.log_loss(&mut state)?;
            let mut score = None;
            if let Some(validation) = validation {
                net.eval();
                let found = averaged(validation(), metrics.iter().map(|(name, _)| name.as_str()), |batch| {
                    Ok(if self.eager { measure(batch) } else { measured.call(batch)? })
                });
                net.train(true);
                let found = found?;
                files.log(state.step, &found)?;
                score = found.get(watched.as_str()).copied();
                state.metrics.extend(found.into_iter().filter(|(_, v)| v.is_finite()));
            }
            if let Some(score) = score {
                state.judge(score, best);
            }
            if watch.after_epoch(&state, net).is_break() {
                ended = Ended::Stopped;
            }
            let due = matches!(self.every, Span::Epochs(n) if state.epoch().is_multiple_of(n.max(1)));
            if due || score.is_some() && state.stale == 0 {
                files.save(&state, net, optimizer, score)?;
            }
            if ended == Ended::Stopped {
                break;
            }
        }
        // Asked to stop at the very end: there is nothing left to resume.
        if ended == Ended::Stopped && length.is_reached(state.step, state.epoch()) {
            ended = Ended::Done;
        }
        let pending = state.pending.1 / state.pending.0 as f64;
        let own_seconds = watch.began.elapsed().as_secs_f64();
        let fitted = Fitted {
            ended,
            steps: state.step,
            epochs: state.epoch(),
            loss: state.loss.unwrap_or(pending),
            metrics: state.metrics.clone(),
            seconds: files.run.as_ref().map_or(own_seconds, Run::seconds),
            steps_per_second: watch.own_steps as f64 / own_seconds.max(1e-9),
            weights: weights_hash(net),
        };
        files.finish(&state, net, optimizer, &fitted)?;
        Ok(fitted)
    }

    /// The number that says how good the net is.
    fn watched(&self) -> Result<(String, Best), TrainError> {
        let Some((name, best)) = &self.watch else {
            return Ok((VALIDATION_LOSS.to_owned(), Best::Lowest));
        };
        let mut have = vec![VALIDATION_LOSS.to_owned()];
        have.extend(self.metrics.iter().map(|(name, _)| name.clone()));
        if self.validation.is_none() || !have.contains(name) {
            return Err(TrainError::Unmeasured { name: name.clone(), have });
        }
        Ok((name.clone(), *best))
    }

    /// The run directory, if there is to be one, and the state that it had.
    fn open(&mut self, best: Best, state: &mut State) -> Result<Files, TrainError> {
        let Some(folder) = &self.folder else {
            return if self.resume { Err(TrainError::Nowhere) } else { Ok(Files::default()) };
        };
        let keep = Keep { last: self.keep, best: Some(best), ..Keep::default() };
        if !(self.resume && Run::exists(folder)) {
            let run = Run::create(folder, &self.config)?;
            let checkpoints = run.checkpoints(keep)?;
            return Ok(Files { run: Some(run), checkpoints: Some(checkpoints), saved: None });
        }
        // The lock of the checkpoints comes first: nothing of a run that is still being trained is touched.
        let checkpoints = Checkpoints::open(folder.join("checkpoints"), keep)?;
        let (run, loaded) = Run::resume(folder)?;
        let mut saved = None;
        if let Some(loaded) = loaded {
            *state = State::restore(&loaded, folder, &self.net, self.optimizer.get_mut())?;
            saved = Some(loaded.step);
            self.callbacks.iter_mut().for_each(|c| c.resumed(loaded.step, &loaded.passed_over));
        }
        Ok(Files { run: Some(run), checkpoints: Some(checkpoints), saved })
    }
}

/// The mean of each number over all samples, the loss first.
fn averaged<'n, B>(
    batches: impl Iterator<Item = (usize, B)>,
    names: impl Iterator<Item = &'n str>,
    mut measure: impl FnMut(B) -> Result<Vec<Tensor>, TrainError>,
) -> Result<BTreeMap<String, f64>, TrainError> {
    let names: Vec<&str> = [VALIDATION_LOSS].into_iter().chain(names).collect();
    let (mut sums, mut samples) = (vec![0.0; names.len()], 0);
    for (n, batch) in batches {
        for (sum, value) in sums.iter_mut().zip(measure(batch)?) {
            *sum += n as f64 * value.to_dtype(DType::F64).item::<f64>();
        }
        samples += n;
    }
    Ok(names.into_iter().zip(sums).map(|(name, sum)| (name.to_owned(), sum / samples as f64)).collect())
}

/// What is written while training; nothing, without a folder.
#[derive(Default)]
struct Files {
    run: Option<Run>,
    checkpoints: Option<Checkpoints>,
    /// The step of the newest checkpoint.
    saved: Option<u64>,
}

impl Files {
    fn log(&mut self, step: u64, values: &BTreeMap<String, f64>) -> Result<(), TrainError> {
        let values: Vec<(&str, f64)> = values.iter().map(|(n, &v)| (n.as_str(), v)).collect();
        self.run.as_mut().map_or(Ok(()), |run| run.log(step, &values))
    }

    /// Writes down the mean of the losses since the last time.
    fn log_loss(&mut self, state: &mut State) -> Result<(), TrainError> {
        let (n, sum) = std::mem::take(&mut state.pending);
        if n == 0 {
            return Ok(());
        }
        state.loss = Some(sum / n as f64);
        self.log(state.step, &BTreeMap::from([("loss".to_owned(), sum / n as f64)]))
    }

    fn save<R: Rule>(
        &mut self,
        state: &State,
        net: &impl Module,
        optimizer: &RefCell<Optimizer<R>>,
        score: Option<f64>,
    ) -> Result<(), TrainError> {
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        checkpoints.save(state.snapshot(net, &optimizer.borrow(), score))?;
        self.saved = Some(state.step);
        Ok(())
    }

    /// The last checkpoint, and, if there is nothing left to do, the model and the summary.
    fn finish<R: Rule>(
        mut self,
        state: &State,
        net: &impl Module,
        optimizer: &RefCell<Optimizer<R>>,
        fitted: &Fitted,
    ) -> Result<(), TrainError> {
        if self.saved != Some(state.step) {
            self.save(state, net, optimizer, None)?;
        }
        if let Some(checkpoints) = &mut self.checkpoints {
            checkpoints.flush()?;
        }
        if let Some(run) = self.run.as_mut().filter(|_| fitted.ended != Ended::Stopped) {
            save_weights(net, run.path().join("model.safetensors"))?;
            run.finish(fitted)?;
        }
        Ok(())
    }
}

/// Tells the callbacks.
struct Watch<'a, N> {
    callbacks: &'a mut Vec<Box<dyn Callback<N>>>,
    steps: u64,
    began: Instant,
    own_steps: u64,
}

impl<N> Watch<'_, N> {
    fn after_step(&mut self, state: &State, loss: f64, net: &N) -> ControlFlow<()> {
        self.own_steps += 1;
        self.tell(state, loss, |c, now| c.after_step(now, net))
    }

    fn after_epoch(&mut self, state: &State, net: &N) -> ControlFlow<()> {
        self.tell(state, state.loss.unwrap_or(f64::NAN), |c, now| c.after_epoch(now, net))
    }

    /// All of them hear it, even if one asks for an end.
    fn tell(
        &mut self,
        state: &State,
        loss: f64,
        mut call: impl FnMut(&mut dyn Callback<N>, &Progress) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        if self.callbacks.is_empty() {
            return ControlFlow::Continue(());
        }
        let now = Progress {
            step: state.step,
            steps: self.steps,
            epoch: state.epoch(),
            loss,
            metrics: state.metrics.clone(),
            own_steps: self.own_steps,
            own_seconds: self.began.elapsed().as_secs_f64(),
        };
        let answers: Vec<ControlFlow<()>> = self.callbacks.iter_mut().map(|c| call(&mut **c, &now)).collect();
        match answers.iter().any(ControlFlow::is_break) {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        }
    }
}
