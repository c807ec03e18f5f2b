//! What a checkpoint of a training holds, and how it is brought back.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use thalweg_data::Position;
use thalweg_nn::{Average, Module, Named, Optimizer, Rule, set_weights};
use thalweg_tensor::Tensor;

use crate::checkpoint::{Best, Loaded, Snapshot};
use crate::error::TrainError;

/// Everything of a training that is no tensor, as it stands in a checkpoint.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Steps that were made.
    pub step: u64,
    /// Where the next batch begins; `None` before the first.
    pub position: Option<Position>,
    /// The losses since they were last written down: how many, and their sum.
    pub pending: (u64, f64),
    /// The mean loss that was last written down.
    pub loss: Option<f64>,
    /// The last value of each metric.
    pub metrics: BTreeMap<String, f64>,
    /// The best score so far, and the validations since.
    pub best: Option<f64>,
    /// How long it has not got better.
    pub stale: u64,
}

impl State {
    /// The mean loss that was last written down, or of all steps when none was yet.
    pub fn mean_loss(&self) -> f64 {
        self.loss.unwrap_or(self.pending.1 / self.pending.0 as f64)
    }

    /// Epochs that are done.
    pub fn epoch(&self) -> u64 {
        self.position.map_or(0, |p| p.epoch)
    }

    /// Notes the score of a validation.
    pub fn judge(&mut self, score: f64, best: Best) {
        let better = self.best.is_none_or(|before| match best {
            Best::Lowest => score < before,
            Best::Highest => score > before,
        });
        match better {
            true => (self.best, self.stale) = (Some(score), 0),
            false => self.stale += 1,
        }
    }
}

/// What learns: everything that has tensors to be saved.
pub(super) struct Learner<'a, N, R> {
    pub net: &'a N,
    pub optimizer: &'a RefCell<Optimizer<R>>,
    pub average: Option<&'a RefCell<Average>>,
}

impl<N: Module, R: Rule> Learner<'_, N, R> {
    /// Handles to all tensors; [`Checkpoints::save`](crate::Checkpoints::save) copies them.
    pub fn snapshot(&self, state: &State, score: Option<f64>) -> Snapshot {
        let tensors = |named: Vec<Named>| named.into_iter().map(|n| (n.name, n.param.get()));
        let mut snapshot =
            Snapshot::new(state.step, serde_json::to_value(state).expect("a state is always JSON"))
                .part("model", tensors(self.net.state()))
                .part("optimizer", tensors(self.optimizer.borrow().state()))
                .part("noise", tensors(self.net.noise()));
        if let Some(average) = self.average {
            snapshot = snapshot.part("average", tensors(average.borrow().state()));
        }
        if let Some(score) = score.filter(|s| s.is_finite()) {
            snapshot = snapshot.score(score);
        }
        snapshot
    }

    /// Brings a checkpoint back. A part that is missing or does not fit is found before weights change.
    pub fn restore(&self, loaded: &Loaded, run: &Path) -> Result<State, TrainError> {
        let refuse =
            |reason: String| TrainError::Checkpoint { path: run.to_owned(), step: loaded.step, reason };
        let state: State = serde_json::from_value(loaded.state.clone()).map_err(|e| refuse(e.to_string()))?;
        let part =
            |name: &str| loaded.parts.get(name).ok_or_else(|| refuse(format!("it has no part {name:?}")));
        let (model, slots, noise) = (part("model")?, part("optimizer")?, part("noise")?);
        let mut rest: Vec<(Named, Tensor)> = Vec::new();
        let mut claim = |named: Vec<Named>, from: &BTreeMap<String, Tensor>, what: &str| {
            for n in named {
                match from.get(&n.name).filter(|t| *t.meta() == n.param.meta()) {
                    Some(t) => rest.push((n, t.clone())),
                    None => return Err(refuse(format!("it has no {what} for {:?}", n.name))),
                }
            }
            Ok(())
        };
        claim(self.net.noise(), noise, "random state")?;
        if let Some(average) = self.average {
            claim(average.borrow().state(), part("average")?, "average")?;
        }
        set_weights(self.net, model)?;
        let source = format!("optimizer of {}", run.display());
        self.optimizer.borrow_mut().set_state(slots, self.net, &source)?;
        rest.into_iter().for_each(|(named, value)| named.param.set(value));
        Ok(state)
    }
}
