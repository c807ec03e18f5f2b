//! How far the books of a run are, read back from its folder: the newest checkpoint, what was written down since, the mark.

use std::path::Path;

use serde_json::Value;
use thalweg_train::{Line, Place, Run, State, TrainError, load_latest};

use super::books::LOSS;
use crate::ids::Clock;

/// What stands in the folder of a run that goes on at a clock, and holds nothing of later ones.
pub(super) struct Found {
    pub state: State,
    /// Whether what is due at the clock was measured.
    pub is_measured: bool,
}

impl Found {
    pub fn read(folder: &Path, place: &Place, clock: Clock) -> Result<Self, TrainError> {
        let mut state = match load_latest(place)?.filter(|l| l.step <= clock) {
            Some(loaded) => state_of(&loaded.state, folder, loaded.step)?,
            None => State::default(),
        };
        let (saved, lines) = (state.step, Run::metrics_of(folder)?);
        lines.iter().filter(|line| line.step > saved).for_each(|line| add(&mut state, line));
        let mark = Run::mark_of(folder).filter(|mark| (state.step..=clock).contains(&mark.step));
        state.step = mark.map_or(clock, |mark| mark.step);
        state.pending = mark.map_or(state.pending, |mark| mark.pending);
        let measures = |line: &Line| line.step == clock && line.values.keys().any(|name| name != LOSS);
        let is_measured = lines.iter().any(measures);
        Ok(Self { state, is_measured })
    }
}

fn state_of(value: &Value, folder: &Path, step: u64) -> Result<State, TrainError> {
    let refuse = |e: serde_json::Error| TrainError::Checkpoint {
        path: folder.to_owned(),
        step,
        reason: e.to_string(),
    };
    serde_json::from_value(value.clone()).map_err(refuse)
}

/// What a line says, once it is written.
fn add(state: &mut State, line: &Line) {
    for (name, value) in &line.values {
        match name.as_str() {
            LOSS => (state.step, state.pending, state.loss) = (line.step, (0, 0.0), Some(*value)),
            _ => drop(state.metrics.insert(name.clone(), *value)),
        }
    }
}
