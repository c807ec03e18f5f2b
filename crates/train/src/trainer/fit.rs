//! The loop.

use std::time::Instant;

use thalweg_core::DType;
use thalweg_data::{Batches, Dataset, Position};
use thalweg_nn::{Module, Rule};
use thalweg_runtime::Tree;
use thalweg_tensor::Tensor;

use super::examine::{Examiner, measures};
use super::files::Files;
use super::fitted::{Ended, Fitted, weights_hash};
use super::runner::Runner;
use super::span::Span;
use super::state::{Learner, State};
use super::step::step;
use super::watch::Watch;
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
        let (mut files, resumed) = self.open(best, &mut state)?;
        for callback in &mut self.callbacks {
            callback.begun(state.step);
            resumed.iter().for_each(|passed_over| callback.resumed(state.step, passed_over));
        }

        let Self { net, optimizer, average, loss, metrics, validation, schedule, callbacks, .. } = self;
        let (net, optimizer, average) = (&*net, &*optimizer, average.as_ref());
        let learner = Learner { net, optimizer, average };
        let mut step = Runner::new(self.mode, step(net, optimizer, average, loss, self.how));
        let mut examiner = Examiner {
            net,
            metrics,
            observers: &self.observers,
            validation: validation.as_ref(),
            runner: Runner::new(self.mode, measures(net, loss, metrics)),
        };
        let measures_anything = examiner.validation.is_some() || !examiner.observers.is_empty();
        let mut watch =
            Watch { callbacks, steps: length.steps(per_epoch), began: Instant::now(), own_steps: 0 };
        let is_stale = |state: &State| self.patience.is_some_and(|p| state.stale >= p);
        let mut ended = Ended::Done;
        net.train(true);

        'training: while !length.is_reached(state.step, state.epoch()) {
            if is_stale(&state) {
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
                let loss: f64 = step.call(batch)?.to_dtype(DType::F64).item();
                if !loss.is_finite() {
                    return Err(TrainError::Diverged { step: state.step + 1, loss });
                }
                let is_epoch = epoch.len() == 0;
                state.step += 1;
                state.position = Some(match is_epoch {
                    true => Position { epoch: here.epoch + 1, sample: 0, ..here },
                    false => epoch.position(),
                });
                state.pending = (state.pending.0 + 1, state.pending.1 + loss);
                if watch.own_steps == 0 {
                    files.draw(|title| step.picture(title))?;
                }
                let over = length.is_reached(state.step, state.epoch());
                if is_epoch || over || state.step.is_multiple_of(self.log_every) {
                    files.log_loss(&mut state)?;
                }
                let mut stop = watch.after_step(&state, loss, net).is_break();

                let mut score = None;
                if measures_anything
                    && (over || self.validate_every.is_due(state.step, state.epoch(), is_epoch))
                {
                    let found = examiner.examine(average.map(|a| a.borrow()).as_deref())?;
                    files.log(state.step, &found)?;
                    score = found.get(watched.as_str()).copied();
                    state.metrics.extend(found.into_iter().filter(|(_, v)| v.is_finite()));
                    if let Some(score) = score {
                        state.judge(score, best);
                    }
                    stop |= watch.measured(&state, net).is_break();
                }
                if is_epoch {
                    stop |= watch.after_epoch(&state, net).is_break();
                }
                let is_best = score.is_some() && state.stale == 0;
                if is_best || self.every.is_due(state.step, state.epoch(), is_epoch) {
                    files.save(&state, &learner, score)?;
                }
                if over {
                    break 'training;
                }
                if stop || is_stale(&state) {
                    ended = if stop { Ended::Stopped } else { Ended::Early };
                    break 'training;
                }
            }
        }
        let own_seconds = watch.began.elapsed().as_secs_f64();
        let own_steps = watch.own_steps;
        files.save_last(&state, &learner)?;
        if let Some(average) = average.filter(|_| ended != Ended::Stopped) {
            average.borrow().copy_to(net);
        }
        let fitted = Fitted {
            ended,
            steps: state.step,
            epochs: state.epoch(),
            loss: state.mean_loss(),
            metrics: state.metrics.clone(),
            seconds: files.run.as_ref().map_or(own_seconds, Run::seconds),
            steps_per_second: own_steps as f64 / own_seconds.max(1e-9),
            weights: weights_hash(net),
        };
        files.finish(net, &fitted)?;
        Ok(fitted)
    }

    /// The numbers of the net as it is: the loss and all metrics on the validation batches, and what is observed.
    pub fn evaluate(&mut self) -> Result<std::collections::BTreeMap<String, f64>, TrainError> {
        let Self { net, loss, metrics, observers, validation, .. } = self;
        let runner = Runner::new(self.mode, measures(&*net, &*loss, &*metrics));
        Examiner { net: &*net, metrics, observers, validation: validation.as_ref(), runner }.examine(None)
    }

    /// The number that says how good the net is.
    fn watched(&self) -> Result<(String, Best), TrainError> {
        let Some((name, best)) = &self.watch else {
            return Ok((VALIDATION_LOSS.to_owned(), Best::Lowest));
        };
        let mut have: Vec<String> = self.observers.iter().map(|(name, _)| name.clone()).collect();
        if self.validation.is_some() {
            have.push(VALIDATION_LOSS.to_owned());
            have.extend(self.metrics.iter().map(|(name, _)| name.clone()));
        }
        if !have.contains(name) {
            have = [VALIDATION_LOSS.to_owned()].into_iter().chain(have).collect();
            have.dedup();
            return Err(TrainError::Unmeasured { name: name.clone(), have });
        }
        Ok((name.clone(), *best))
    }

    /// The run directory, if there is to be one, and the state that it had; of one that goes on, the checkpoints that were passed
    /// over.
    fn open(&mut self, best: Best, state: &mut State) -> Result<(Files, Option<Vec<String>>), TrainError> {
        let Some(folder) = &self.folder else {
            return if self.resume { Err(TrainError::Nowhere) } else { Ok((Files::default(), None)) };
        };
        let keep = Keep { last: self.keep, best: Some(best), intervals: self.intervals.clone() };
        if !(self.resume && Run::exists(folder)) {
            let run = Run::create(folder, &self.config)?;
            let checkpoints = run.checkpoints(keep)?;
            return Ok((Files { run: Some(run), checkpoints: Some(checkpoints), saved: None }, None));
        }
        // The lock of the checkpoints comes first: nothing of a run that is still being trained is touched.
        let checkpoints = Checkpoints::open(folder.join("checkpoints"), keep)?;
        let (run, loaded) = Run::resume(folder)?;
        let mut files = Files { run: Some(run), checkpoints: Some(checkpoints), saved: None };
        let Some(loaded) = loaded else { return Ok((files, Some(Vec::new()))) };
        let learner = Learner { net: &self.net, optimizer: &self.optimizer, average: self.average.as_ref() };
        *state = learner.restore(&loaded, folder)?;
        files.saved = Some(loaded.step);
        Ok((files, Some(loaded.passed_over)))
    }
}
