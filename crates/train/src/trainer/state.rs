//! What a checkpoint of a training holds, and how it is brought back.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use thalweg_data::Position;
use thalweg_nn::{Module, Named, Optimizer, Rule, set_weights};
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
    /// The best score so far, and the epochs since.
    pub best: Option<f64>,
    /// How long it has not got better.
    pub stale: u64,
}

impl State {
    /// Epochs that are done.
    pub fn epoch(&self) -> u64 {
        self.position.map_or(0, |p| p.epoch)
    }

    /// Notes the score of an epoch.
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

    /// Handles to all tensors; [`Checkpoints::save`](crate::Checkpoints::save) copies them.
    pub(super) fn snapshot<R: Rule>(
        &self,
        net: &impl Module,
        optimizer: &Optimizer<R>,
        score: Option<f64>,
    ) -> Snapshot {
        let state = serde_json::to_value(self).expect("a state is always JSON");
        let tensors = |named: Vec<Named>| named.into_iter().map(|n| (n.name, n.param.get()));
        let mut snapshot = Snapshot::new(self.step, state)
            .part("model", tensors(net.state()))
            .part("optimizer", tensors(optimizer.state()))
            .part("noise", tensors(net.noise()));
        if let Some(score) = score.filter(|s| s.is_finite()) {
            snapshot = snapshot.score(score);
        }
        snapshot
    }

    /// Brings a checkpoint back.
    pub(super) fn restore<R: Rule>(
        loaded: &Loaded,
        run: &Path,
        net: &impl Module,
        optimizer: &mut Optimizer<R>,
    ) -> Result<Self, TrainError> {
        let refuse =
            |reason: String| TrainError::Checkpoint { path: run.to_owned(), step: loaded.step, reason };
        let state: State = serde_json::from_value(loaded.state.clone()).map_err(|e| refuse(e.to_string()))?;
        let part =
            |name: &str| loaded.parts.get(name).ok_or_else(|| refuse(format!("it has no part {name:?}")));
        let (model, slots, noise) = (part("model")?, part("optimizer")?, part("noise")?);
        let sources = net.noise();
        let fits =
            |named: &&Named| noise.get(&named.name).is_some_and(|t: &Tensor| *t.meta() == named.param.meta());
        if let Some(other) = sources.iter().find(|n| !fits(n)) {
            return Err(refuse(format!("it has no random state for {:?}", other.name)));
        }
        set_weights(net, model)?;
        optimizer.set_state(slots, net, &format!("optimizer of {}", run.display()))?;
        sources.iter().for_each(|n| n.param.set(noise[&n.name].clone()));
        Ok(state)
    }
}
