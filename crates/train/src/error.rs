//! What can go wrong with a run directory, as values.

use std::io;
use std::path::{Path, PathBuf};

use thalweg_data::DataError;
use thalweg_formats::FormatError;
use thalweg_nn::NnError;
use thalweg_runtime::RunError;
use thalweg_tensor::OpError;
use thiserror::Error;

/// Why a net could not be trained, or a run directory not be used.
#[derive(Debug, Error)]
pub enum TrainError {
    /// The system refused.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A place of checkpoints that is no folder refused.
    #[error("{action} {place}: {reason}")]
    Place {
        /// What was being done.
        action: &'static str,
        /// The place.
        place: String,
        /// Its reason.
        reason: String,
    },
    /// A file of tensors or a file to be replaced.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// A run where none should be.
    #[error("{} already holds a run; resume it, or choose another folder", path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// No run where one should be.
    #[error("{} is not a run directory (it has no {file})", path.display())]
    NotARun {
        /// The folder.
        path: PathBuf,
        /// What is missing.
        file: &'static str,
    },
    /// A file of ours that somebody changed.
    #[error("{}:{line}: {reason}", path.display())]
    Json {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
        /// What is wrong.
        reason: String,
    },
    /// Checkpoints that somebody else is writing.
    #[error("{} is being written by {}; wait for its end, or stop it", path.display(), named(holder))]
    Locked {
        /// The folder of the checkpoints.
        path: PathBuf,
        /// Who holds it; empty when it has not said yet.
        holder: String,
    },
    /// Checkpoints of which none can be loaded.
    #[error("no checkpoint in {} can be loaded:\n  {}", path.display(), reasons.join("\n  "))]
    AllBroken {
        /// The folder of the checkpoints.
        path: PathBuf,
        /// What is wrong with each, newest first.
        reasons: Vec<String>,
    },
    /// A name that cannot be part of a file's name.
    #[error("checkpoint part {name:?} needs a name of letters, digits, - and _")]
    PartName {
        /// The name.
        name: String,
    },
    /// The thread that writes checkpoints has panicked.
    #[error("the thread that writes checkpoints has failed")]
    Writer,
    /// A metric that no run has.
    #[error("no run has the metric {name:?}; there are {}", have.join(", "))]
    NoMetric {
        /// The metric.
        name: String,
        /// Those there are.
        have: Vec<String>,
    },
    /// Weights or slots that are not those of the net.
    #[error(transparent)]
    Nn(Box<NnError>),
    /// Data that cannot be had, or that are not those of the checkpoint.
    #[error(transparent)]
    Data(Box<DataError>),
    /// A compiled step failed.
    #[error(transparent)]
    Step(Box<RunError>),
    /// An op of a step that is not compiled refused its values.
    #[error(transparent)]
    Op(Box<OpError>),
    /// A checkpoint of something else.
    #[error("the checkpoint of step {step} in {} is not of this training: {reason}", path.display())]
    Checkpoint {
        /// The run.
        path: PathBuf,
        /// The step of the checkpoint.
        step: u64,
        /// What does not fit.
        reason: String,
    },
    /// A loss that is no number any more.
    #[error("the loss of step {step} is {loss}; use a lower learning rate or clip the gradients")]
    Diverged {
        /// The step, the first being 1.
        step: u64,
        /// The loss.
        loss: f64,
    },
    /// Something to resume without a place where it lies.
    #[error("resume needs to know the run: use `checkpoint_every(Epochs(1), \"runs/name\")`")]
    Nowhere,
    /// Data of which no batch can be made.
    #[error("{samples} samples make no batch of {size}")]
    NoBatch {
        /// Samples there are.
        samples: usize,
        /// Samples of a batch.
        size: usize,
    },
    /// A score that is never measured.
    #[error("`watch` wants {name:?}, which is not measured; give `validate` batches and watch one of {}", have.join(", "))]
    Unmeasured {
        /// The metric.
        name: String,
        /// Those there are.
        have: Vec<String>,
    },
    /// A folder without runs.
    #[error("{} holds no runs", path.display())]
    NoRuns {
        /// The folder.
        path: PathBuf,
    },
}

impl TrainError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| TrainError::Io { action, path: path.to_owned(), source }
    }
}

/// Boxed, so that a result stays small.
macro_rules! boxed {
    ($($Variant:ident($Source:ty)),*) => {$(
        impl From<$Source> for TrainError {
            fn from(source: $Source) -> Self {
                TrainError::$Variant(Box::new(source))
            }
        }
    )*};
}

boxed!(Nn(NnError), Data(DataError), Step(RunError), Op(OpError));

fn named(holder: &str) -> &str {
    if holder.is_empty() { "another process" } else { holder }
}
