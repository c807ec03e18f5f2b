//! Training, and run directories: what it leaves behind, whole at every moment.
//!
//! A [`Trainer`] runs the loop: one compiled step per batch, validation, checkpoints from which it goes on bit for bit.
//! A [`Run`] is a folder with the configuration, the metrics as JSON lines and as TensorBoard events, and
//! [`Checkpoints`]. Checkpoints are written on a thread of their own from a copy, and appear all at once or not at
//! all: a process that is killed leaves the last whole one. [`list`] and [`plot::Plot`] look at many runs, [`report`]
//! makes a page of one.
//!
//! Knows no socket. Of a net only the [`Trainer`] knows: to the rest a checkpoint is named tensors and a small JSON value.

mod checkpoint;
mod error;
pub mod events;
mod mark;
mod metrics;
pub mod plot;
mod report;
mod run;
mod summary;
mod trainer;

pub use checkpoint::{
    Best, CheckpointInfo, Checkpoints, Files, Hold, Keep, Loaded, Place, ShardParts, Snapshot, inspect,
    load_best, load_latest, load_step, save_shard,
};
pub use error::TrainError;
pub use mark::Mark;
pub use metrics::{Line, Metrics};
pub use report::report;
pub use run::Run;
pub use summary::{RunSummary, compare, list, table};
pub use trainer::{
    Callback, Ended, Epochs, Fitted, Measure, Parts, Passes, Progress, Span, State, Steps, Trainer,
    VALIDATION_LOSS, weights_hash,
};
