//! Code of the user's own between the steps.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

/// How far training has come.
#[derive(Debug, Clone)]
pub struct Progress {
    /// Steps that were made, also by processes before this one.
    pub step: u64,
    /// Steps of the whole training, if it is not stopped.
    pub steps: u64,
    /// Epochs that are done.
    pub epoch: u64,
    /// The loss of the last step.
    pub loss: f64,
    /// The last value of each metric.
    pub metrics: BTreeMap<String, f64>,
    /// Steps that this process made.
    pub own_steps: u64,
    /// Seconds that this process has trained.
    pub own_seconds: f64,
}

impl Progress {
    /// Steps per second, of this process.
    pub fn rate(&self) -> f64 {
        self.own_steps as f64 / self.own_seconds.max(1e-9)
    }

    /// Seconds that are left at this rate.
    pub fn eta(&self) -> f64 {
        self.steps.saturating_sub(self.step) as f64 / self.rate().max(1e-9)
    }
}

/// Is called between steps, sees the net, and may ask for an end: `ControlFlow::Break(())`. Then a checkpoint is written, and
/// the run can be resumed there.
///
/// ```
/// use std::ops::ControlFlow;
/// use thalweg_train::{Callback, Progress};
///
/// struct Patience {
///     seconds: f64,
/// }
///
/// impl<N> Callback<N> for Patience {
///     fn after_step(&mut self, now: &Progress, _: &N) -> ControlFlow<()> {
///         if now.own_seconds > self.seconds { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
///     }
/// }
/// ```
pub trait Callback<N> {
    /// Training begins after `step`: the folder of the run, if there is one, is open, and nobody else writes there.
    fn begun(&mut self, step: u64) {
        let _ = step;
    }

    /// A run goes on after `step`, which is 0 when there was no checkpoint yet. Damaged checkpoints that were `passed_over` are worth showing.
    fn resumed(&mut self, step: u64, passed_over: &[String]) {
        let _ = (step, passed_over);
    }

    /// After each step.
    fn after_step(&mut self, now: &Progress, net: &N) -> ControlFlow<()> {
        let _ = (now, net);
        ControlFlow::Continue(())
    }

    /// After each validation, with what it found.
    fn measured(&mut self, now: &Progress, net: &N) -> ControlFlow<()> {
        let _ = (now, net);
        ControlFlow::Continue(())
    }

    /// After each epoch.
    fn after_epoch(&mut self, now: &Progress, net: &N) -> ControlFlow<()> {
        let _ = (now, net);
        ControlFlow::Continue(())
    }
}
