//! A trainer taken apart, for loops of another kind, such as that of a cluster.

use std::path::PathBuf;

use serde_json::Value;
use thalweg_nn::Optimizer;
use thalweg_nn::schedule::Schedule;
use thalweg_tensor::Tensor;

use super::runner::Mode;
use super::{Callback, Span, Trainer};

/// Everything that a [`Trainer`] was told.
pub struct Parts<N, R, B, L> {
    /// The net.
    pub net: N,
    /// What moves its parameters.
    pub optimizer: Optimizer<R>,
    /// The loss of a batch.
    pub loss: L,
    /// Numbers to be measured on validation batches, with their names.
    pub metrics: Vec<(String, Measure<N, B>)>,
    /// Begins a pass over the validation batches, each with its number of samples.
    pub validation: Option<Passes<B>>,
    /// How often it is validated, and at the end.
    pub validate_every: Span,
    /// The learning rate of each step.
    pub schedule: Option<Box<dyn Schedule>>,
    /// Code of the user's own.
    pub callbacks: Vec<Box<dyn Callback<N>>>,
    /// Where the run is written.
    pub folder: Option<PathBuf>,
    /// How often a checkpoint is written.
    pub every: Span,
    /// How many checkpoints stay.
    pub keep: usize,
    /// Whether to go on with the run in the folder.
    pub resume: bool,
    /// Settings to be written to the run.
    pub config: Value,
    /// Steps between two losses that are written down.
    pub log_every: u64,
    /// Whether each epoch has an order of its own.
    pub shuffle: bool,
    /// A setting that only the trainer's own loop knows, and what to do instead.
    pub alone: Option<(&'static str, &'static str)>,
}

/// A number of a batch, as a scalar.
pub type Measure<N, B> = Box<dyn Fn(&N, B) -> Tensor>;

/// Begins a pass over batches, each with its number of samples.
pub type Passes<B> = Box<dyn Fn() -> Box<dyn Iterator<Item = (usize, B)>>>;

impl<N, R, B, L> Trainer<N, R, B, L> {
    /// Everything that it was told.
    pub fn into_parts(self) -> Parts<N, R, B, L> {
        let one_process = "train it in one process";
        let alone = [
            (self.patience.is_some(), "early_stop", "validate and choose the best checkpoint"),
            (self.average.is_some(), "average", one_process),
            (self.how.precision.is_some(), "precision", one_process),
            (self.how.parts > 1, "accumulate", "use smaller batches or more workers"),
            (!self.observers.is_empty(), "observe", "measure it with `metric`"),
            (!self.intervals.is_empty(), "save_part_every", one_process),
            (self.mode == Mode::Autobatched, "autobatch", one_process),
        ];
        Parts {
            alone: alone.into_iter().find(|(is_set, ..)| *is_set).map(|(_, what, instead)| (what, instead)),
            net: self.net,
            optimizer: self.optimizer.into_inner(),
            loss: self.loss,
            metrics: self.metrics,
            validation: self.validation,
            validate_every: self.validate_every,
            schedule: self.schedule,
            callbacks: self.callbacks,
            folder: self.folder,
            every: self.every,
            keep: self.keep,
            resume: self.resume,
            config: self.config,
            log_every: self.log_every,
            shuffle: self.shuffle,
        }
    }
}
