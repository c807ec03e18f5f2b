//! What a training writes.

use std::collections::BTreeMap;

use thalweg_nn::{Module, Rule, save_weights};

use super::fitted::{Ended, Fitted};
use super::state::{Learner, State};
use crate::checkpoint::Checkpoints;
use crate::error::TrainError;
use crate::run::Run;

/// What is written while training; nothing, without a folder.
#[derive(Default)]
pub(super) struct Files {
    pub run: Option<Run>,
    pub checkpoints: Option<Checkpoints>,
    /// The step of the newest checkpoint.
    pub saved: Option<u64>,
}

impl Files {
    pub fn log(&mut self, step: u64, values: &BTreeMap<String, f64>) -> Result<(), TrainError> {
        let values: Vec<(&str, f64)> = values.iter().map(|(n, &v)| (n.as_str(), v)).collect();
        self.run.as_mut().map_or(Ok(()), |run| run.log(step, &values))
    }

    /// Writes down the mean of the losses since the last time.
    pub fn log_loss(&mut self, state: &mut State) -> Result<(), TrainError> {
        let (n, sum) = std::mem::take(&mut state.pending);
        if n == 0 {
            return Ok(());
        }
        state.loss = Some(sum / n as f64);
        self.log(state.step, &BTreeMap::from([("loss".to_owned(), sum / n as f64)]))
    }

    /// Draws the compiled step, once per run.
    pub fn draw(&self, picture: impl FnOnce(&str) -> Option<String>) -> Result<(), TrainError> {
        let Some(run) = &self.run else { return Ok(()) };
        let path = run.path().join("graph.html");
        if path.exists() {
            return Ok(());
        }
        let Some(page) = picture("one step of training") else { return Ok(()) };
        std::fs::write(&path, page).map_err(TrainError::io("write", &path))
    }

    pub fn save<N: Module, R: Rule>(
        &mut self,
        state: &State,
        learner: &Learner<'_, N, R>,
        score: Option<f64>,
    ) -> Result<(), TrainError> {
        let Some(checkpoints) = &mut self.checkpoints else { return Ok(()) };
        checkpoints.save(learner.snapshot(state, score))?;
        self.saved = Some(state.step);
        Ok(())
    }

    /// The last checkpoint, on disk when this returns.
    pub fn save_last<N: Module, R: Rule>(
        &mut self,
        state: &State,
        learner: &Learner<'_, N, R>,
    ) -> Result<(), TrainError> {
        if self.saved != Some(state.step) {
            self.save(state, learner, None)?;
        }
        self.checkpoints.as_mut().map_or(Ok(()), |checkpoints| checkpoints.flush())
    }

    /// The model and the summary, if there is nothing left to do.
    pub fn finish(mut self, net: &impl Module, fitted: &Fitted) -> Result<(), TrainError> {
        let Some(run) = self.run.as_mut().filter(|_| fitted.ended != Ended::Stopped) else { return Ok(()) };
        save_weights(net, run.path().join("model.safetensors"))?;
        run.finish(fitted)
    }
}
