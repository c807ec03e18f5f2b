//! What the keeper of the books writes: losses, metrics, the manifests of checkpoints.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::Value;
use thalweg_data::Position;
use thalweg_nn::{Module, save_weights};
use thalweg_tensor::Tensor;
use thalweg_train::{Checkpoints, Fitted, Keep, Line, Place, Run, State, TrainError, load_latest};

use crate::error::ClusterError;
use crate::ids::Clock;

/// How long the end of a run waits for shards of the last checkpoint.
const LAST_SHARDS: Duration = Duration::from_secs(10);

/// The books, opened by whoever computes the first slot.
pub(crate) struct Books {
    pub n_shards: u32,
    pub folder: Option<(PathBuf, Place)>, // of the run, and where its checkpoints lie
    pub every: Clock,
    pub size: usize,
    pub keep: usize,
    pub resume: bool,
    pub config: Value,
    pub log_every: u64,
    pub per_epoch: u64,
    pub clocks: Clock,
    /// The run may be taken back to the checkpoint of this step, or to a newer one. Nothing is known at first, and everything stays.
    pub secured: Clock,
    pub open: Option<Open>,
}

/// Open books.
pub(crate) struct Open {
    pub state: State,
    run: Option<Run>,
    checkpoints: Option<Checkpoints>,
    n_shards: u32,
    saved: Option<Clock>,            // the newest checkpoint that was made whole here
    measured: Option<Clock>, // at this step, where the books were opened, somebody has measured before
    began: (Clock, Instant), // where and when they were opened
    awaited: BTreeMap<Clock, Value>, // checkpoints whose shards are being written, with their states
}

impl Books {
    /// Brings the books to a clock, counted in steps: notes the loss of the step before it, and where its samples begin if `start` says in
    /// which order they come. `None` while another process still holds them.
    pub fn at(
        &mut self,
        clock: Clock,
        loss: f64,
        start: Option<Position>,
    ) -> Result<Option<&mut Open>, ClusterError> {
        let fresh = self.open.is_none();
        if fresh {
            self.open = self.begin(clock)?;
        }
        // Who tells the result has to have them; whoever holds them has lost the first slot, and sees that in a moment.
        let end = Instant::now() + LAST_SHARDS;
        while self.open.is_none() && clock == self.clocks && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
            self.open = self.begin(clock)?;
        }
        let Some(open) = &mut self.open else { return Ok(None) };
        open.checkpoints.iter_mut().for_each(|c| c.keep_from(self.secured));
        let state = &mut open.state;
        // A clock may be several steps.
        let before = state.step;
        let passed = |every: u64| clock / every > before / every;
        if clock > state.step {
            if !fresh {
                state.pending = (state.pending.0 + 1, state.pending.1 + loss);
            }
            state.step = clock;
        }
        let (epoch, at) = (clock / self.per_epoch, (clock % self.per_epoch) as usize);
        state.position = start.map(|start| Position { epoch, sample: at * self.size, ..start });
        if passed(self.log_every) || passed(self.per_epoch) || clock == self.clocks {
            open.log_loss()?;
        }
        if clock > 0 && clock.is_multiple_of(self.every) && open.checkpoints.is_some() && !fresh {
            let state = serde_json::to_value(&open.state).expect("a state is always JSON");
            open.awaited.insert(clock, state);
        }
        Ok(Some(open))
    }

    /// The step of the newest checkpoint that was made whole here.
    pub fn saved(&self) -> Option<Clock> {
        self.open.as_ref()?.saved
    }

    fn begin(&self, clock: Clock) -> Result<Option<Open>, TrainError> {
        let mut state = State { step: clock, ..State::default() };
        let (mut run, mut checkpoints, mut measured) = (None, None, None);
        if let Some((folder, place)) = &self.folder {
            let keep = Keep { last: self.keep, ..Keep::default() };
            // Who takes over in the middle of a run goes on with its folder; nobody else's is touched.
            let goes_on =
                Run::exists(folder) && (self.resume || clock > 0 || self.is_blank(folder, place)?);
            if !goes_on {
                run = Some(Run::create(folder, &self.config)?);
            }
            match Checkpoints::open_shared(place, keep) {
                Err(TrainError::Locked { .. }) => return Ok(None),
                opened => checkpoints = Some(opened?),
            }
            if goes_on {
                // A run that was taken back to this clock writes what came after it again.
                checkpoints.iter_mut().try_for_each(|c| c.forget_after(clock))?;
                let (resumed, loaded) = Run::resume_from(folder, place)?;
                if let Some(loaded) = loaded.filter(|l| l.step <= clock) {
                    state = read_state(&loaded.state, folder, loaded.step)?;
                    state.step = clock;
                }
                run = Some(resumed);
                let lines = Run::metrics_of(folder)?;
                let is_measured = |line: &Line| line.step == clock && line.values.keys().any(|n| n != "loss");
                measured = lines.iter().any(is_measured).then_some(clock);
            }
        }
        let (n_shards, awaited, began) = (self.n_shards, BTreeMap::new(), (clock, Instant::now()));
        Ok(Some(Open { state, run, checkpoints, n_shards, saved: None, measured, began, awaited }))
    }

    /// Whether this is a run like ours in which nothing stands yet: whoever kept the books before was killed in the
    /// first step.
    fn is_blank(&self, folder: &Path, place: &Place) -> Result<bool, TrainError> {
        let like_ours = Run::config_of(folder)? == self.config && Run::summary_of(folder)?.is_none();
        Ok(like_ours && Run::metrics_of(folder)?.is_empty() && load_latest(place)?.is_none())
    }

    /// A run that everybody was asked to end at this clock, whose shards are being saved. Whether it can go on from there.
    pub fn stop(
        &mut self,
        clock: Clock,
        loss: f64,
        start: Option<Position>,
        noise: &[(String, Tensor)],
    ) -> Result<bool, ClusterError> {
        let end = Instant::now() + LAST_SHARDS;
        // Who kept the books before may still be about to end.
        while self.at(clock, loss, start)?.is_none() && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(20));
        }
        let Some(open) = self.open.as_mut().filter(|open| open.checkpoints.is_some()) else {
            return Ok(false);
        };
        let state = serde_json::to_value(&open.state).expect("a state is always JSON");
        open.awaited.insert(clock, state);
        while open.saved != Some(clock) && Instant::now() < end {
            open.checkpoints(noise.to_vec())?;
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(open.saved == Some(clock))
    }

    /// The last entries of a run that is done.
    pub fn close(
        &mut self,
        fitted: &mut Fitted,
        net: &impl Module,
        noise: Vec<(String, Tensor)>,
    ) -> Result<(), ClusterError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        fitted.metrics = open.state.metrics.clone();
        fitted.loss = open.state.loss.unwrap_or(fitted.loss);
        let end = Instant::now() + LAST_SHARDS;
        while !open.awaited.is_empty() && Instant::now() < end {
            open.checkpoints(noise.clone())?;
            std::thread::sleep(Duration::from_millis(20));
        }
        if let Some(step) = open.awaited.keys().next_back() {
            // Whoever could not write its part has said why.
            let from = open.saved.map_or("its last checkpoint".into(), |saved| format!("step {saved}"));
            eprintln!("the checkpoint of step {step} is not whole; `resume` would go on from {from}");
        }
        if let Some(run) = &mut open.run {
            fitted.seconds = run.seconds();
            fitted.steps_per_second = fitted.steps as f64 / fitted.seconds.max(1e-9);
            save_weights(net, run.path().join("model.safetensors")).map_err(TrainError::from)?;
            run.finish(fitted)?;
        }
        Ok(())
    }
}

fn read_state(value: &Value, folder: &Path, step: u64) -> Result<State, TrainError> {
    let refuse = |e: serde_json::Error| TrainError::Checkpoint {
        path: folder.to_owned(),
        step,
        reason: e.to_string(),
    };
    serde_json::from_value(value.clone()).map_err(refuse)
}

impl Open {
    /// Whether what is due at this step was measured before these books were opened.
    pub fn is_measured(&self, step: Clock) -> bool {
        self.measured == Some(step)
    }

    /// Steps and seconds since the books were opened.
    pub fn own(&self, step: Clock) -> (u64, f64) {
        let (from, began) = self.began;
        (step.saturating_sub(from), began.elapsed().as_secs_f64())
    }

    /// Writes down the mean of the losses since the last time.
    fn log_loss(&mut self) -> Result<(), TrainError> {
        let (n, sum) = std::mem::take(&mut self.state.pending);
        if n == 0 {
            return Ok(());
        }
        self.state.loss = Some(sum / n as f64);
        let step = self.state.step;
        self.run.as_mut().map_or(Ok(()), |run| run.log(step, &[("loss", sum / n as f64)]))
    }

    /// Writes down what was measured.
    pub fn measured(&mut self, found: &BTreeMap<String, f64>) -> Result<(), TrainError> {
        let values: Vec<(&str, f64)> = found.iter().map(|(n, v)| (n.as_str(), *v)).collect();
        let step = self.state.step;
        self.state.metrics.extend(found.iter().filter(|(_, v)| v.is_finite()).map(|(n, v)| (n.clone(), *v)));
        // The state of the checkpoint of this very clock should know it too.
        if let Some(state) = self.awaited.get_mut(&step) {
            *state = serde_json::to_value(&self.state).expect("a state is always JSON");
        }
        self.run.as_mut().map_or(Ok(()), |run| run.log(step, &values))
    }

    /// Writes the manifests of the checkpoints whose shards are all there. One that was overtaken will never be.
    pub fn checkpoints(&mut self, noise: Vec<(String, Tensor)>) -> Result<(), TrainError> {
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        for clock in self.awaited.keys().copied().collect::<Vec<_>>() {
            let state = self.awaited[&clock].clone();
            if checkpoints.complete(clock, state, self.n_shards, ("noise", noise.clone()))? {
                self.saved = Some(clock);
                self.awaited = self.awaited.split_off(&(clock + 1));
            }
        }
        Ok(())
    }
}
