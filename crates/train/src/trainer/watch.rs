//! Between the trainer and its callbacks.

use std::ops::ControlFlow;
use std::time::Instant;

use super::callback::{Callback, Progress};
use super::state::State;

/// Tells the callbacks.
pub(super) struct Watch<'a, N> {
    pub callbacks: &'a mut Vec<Box<dyn Callback<N>>>,
    pub steps: u64,
    pub began: Instant,
    pub own_steps: u64,
}

impl<N> Watch<'_, N> {
    pub fn after_step(&mut self, state: &State, loss: f64, net: &N) -> ControlFlow<()> {
        self.own_steps += 1;
        self.tell(state, loss, |c, now| c.after_step(now, net))
    }

    pub fn after_epoch(&mut self, state: &State, net: &N) -> ControlFlow<()> {
        self.tell(state, state.mean_loss(), |c, now| c.after_epoch(now, net))
    }

    pub fn measured(&mut self, state: &State, net: &N) -> ControlFlow<()> {
        self.tell(state, state.mean_loss(), |c, now| c.measured(now, net))
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
