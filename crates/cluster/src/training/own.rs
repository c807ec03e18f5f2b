//! Steps that a slot takes on its own between two exchanges: local SGD and elastic averaging.
//!
//! The worker runs the optimiser, by the same compiled rule that a server would. With the mean of all (`local:STEPS`) the
//! servers keep the mean of the optimiser's state too, so a clock is a function of what was pulled: whoever takes over a
//! slot, or goes on from a checkpoint, comes to the same bits. With elastic averaging (`easgd:SHARE`) weights and state of
//! a slot stay with its worker; who takes over begins with the common weights and an optimiser that has seen nothing.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ids::Slot;
use crate::local::Averaging;
use crate::optimise::Moved;
use crate::rule::UpdateRule;
use crate::sync::Sync;
use crate::values::Values;

/// The name of the rule of a table that is the mean of what all slots say.
pub(super) const MEAN: &str = "mean of all";

/// The sum of a round, to which each slot gives its share, takes the place of what was there.
pub(super) struct Mean;

impl UpdateRule for Mean {
    fn update(&self, _step: u64, _value: &[f32], pushed: &[f32], _state: &mut [f32], out: &mut [f32]) {
        out.copy_from_slice(pushed);
    }
}

/// How slots step on their own.
pub(super) struct Own {
    averaging: Averaging,
    moved: Vec<Arc<Moved>>,
    kept: BTreeMap<Slot, Copied>, // weights that stay with the worker
}

/// What a slot moves: a copy of every parameter, the state of its rule, and every buffer.
pub(super) struct Copied {
    pub weights: Vec<Vec<f32>>,
    pub buffers: Vec<Vec<f32>>,
    states: Vec<Vec<f32>>,
}

impl Own {
    /// `None` where servers make the steps.
    pub fn of(sync: Sync, moved: &[Arc<Moved>]) -> Option<Self> {
        sync.averaging().map(|averaging| Self { averaging, moved: moved.to_vec(), kept: BTreeMap::new() })
    }

    /// Whether the servers keep the optimiser's state.
    pub fn shares_state(&self) -> bool {
        self.averaging == Averaging::Local
    }

    /// What a slot goes on from after so many steps: its own, or what was pulled of parameters, buffers and states.
    pub fn begin(&mut self, slot: Slot, steps: u64, pulled: &[&Values], n_buffers: usize) -> Copied {
        if let Some(kept) = self.kept.remove(&slot) {
            return kept;
        }
        let copy = |values: &[&Values]| values.iter().map(|v| v.to_vec()).collect();
        let (weights, rest) = pulled.split_at(self.moved.len());
        let (buffers, states) = rest.split_at(n_buffers);
        let states = match self.averaging {
            Averaging::Local => self.moved.iter().zip(states).map(|(m, s)| m.state_from(steps, s)).collect(),
            Averaging::Elastic(_) => self.moved.iter().map(|m| m.first_state(m.shape.numel())).collect(),
        };
        Copied { weights: copy(weights), buffers: copy(buffers), states }
    }

    /// Forgets what a slot has moved.
    pub fn let_go(&mut self, slot: Slot) {
        self.kept.remove(&slot);
    }

    /// Moves one parameter; `step` counts from one.
    pub fn move_one(&self, own: &mut Copied, param: usize, step: u64, gradient: &[f32]) {
        let mut new = vec![0.0; gradient.len()];
        let (weight, state) = (&mut own.weights[param], &mut own.states[param]);
        self.moved[param].update(step, weight, gradient, state, &mut new);
        *weight = new;
    }

    /// What to push: changes of parameters and buffers, and the slot's share of the states that servers keep.
    pub fn end(&mut self, slot: Slot, n_slots: usize, mut own: Copied, pulled: &[&Values]) -> Vec<Vec<f32>> {
        let share = self.averaging.share(n_slots);
        let both = own.weights.iter_mut().chain(&mut own.buffers);
        let mut pushed: Vec<Vec<f32>> = Vec::new();
        for (own, common) in both.zip(pulled) {
            let drawn: Vec<f32> = own.iter().zip(common.iter()).map(|(w, c)| share * (w - c)).collect();
            own.iter_mut().zip(&drawn).for_each(|(w, d)| *w -= d);
            pushed.push(drawn);
        }
        match self.averaging {
            Averaging::Local => {
                let numbers = self.moved.iter().zip(&own.states).map(|(m, state)| m.numbers(state));
                pushed.extend(numbers.map(|n| n.iter().map(|v| v * share).collect()));
            }
            Averaging::Elastic(_) => drop(self.kept.insert(slot, own)),
        }
        pushed
    }
}
