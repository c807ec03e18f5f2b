//! A trainer taken apart, for loops of another kind, such as that of a cluster.

use std::path::PathBuf;

use serde_json::Value;
use thalweg_nn::Optimizer;
use thalweg_nn::schedule::Schedule;
use thalweg_tensor::Tensor;

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
    pub metrics: Vec<(String, Measured<N, B>)>,
    /// Begins a pass over the validation batches, each with its number of samples.
    pub validation: Option<Passes<B>>,
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
    /// Whether it would end when nothing gets better.
    pub ends_early: bool,
}

/// A number of a batch, a scalar.
pub type Measured<N, B> = Box<dyn Fn(&N, B) -> Tensor>;
/// Begins a pass over batches, each with its number of samples.
pub type Passes<B> = Box<dyn Fn() -> Box<dyn Iterator<Item = (usize, B)>>>;

impl<N, R, B, L> Trainer<N, R, B, L> {
    /// Everything that it was told.
    pub fn into_parts(self) -> Parts<N, R, B, L> {
        Parts {
            net: self.net,
            optimizer: self.optimizer.into_inner(),
            loss: self.loss,
            metrics: self.metrics,
            validation: self.validation,
            schedule: self.schedule,
            callbacks: self.callbacks,
            folder: self.folder,
            every: self.every,
            keep: self.keep,
            resume: self.resume,
            config: self.config,
            log_every: self.log_every,
            shuffle: self.shuffle,
            ends_early: self.patience.is_some(),
        }
    }
}
