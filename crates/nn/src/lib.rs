//! Layers, initialisation, optimisers: a plain user of tensors.
//!
//! Everything that runs in a training step is traceable: it decides by shapes, dtypes and
//! configuration, never by values, and keeps all of its state in [`Param`](thalweg_tensor::Param)s.

// What `#[derive(Module)]` calls this crate.
extern crate self as thalweg;

mod accumulate;
mod average;
mod clip;
mod error;
pub mod init;
mod layers;
mod metrics;
mod mixed;
pub mod models;
mod module;
pub mod optim;
pub mod schedule;
mod summary;
mod weights;

pub use accumulate::Accumulator;
pub use average::Average;
pub use clip::{Clip, clip_norm};
pub use error::{Mismatch, NnError};
pub use layers::*;
pub use metrics::{accuracy, hit_rate};
pub use mixed::autocast;
pub use module::{Identity, Layer, Mode, Module, Named, Noise, Part, Visitor};
pub use optim::{
    Adadelta, Adafactor, Adagrad, Adam, AdamW, Adamax, Asgd, Decay, Group, Lbfgs, LbfgsOptions, LineSearch,
    Lion, Muon, NAdam, Optimizer, RAdam, RmsProp, Rprop, Rule, Sgd, Slots,
};
pub use summary::{Row, Summary};
pub use thalweg_derive::Module;
pub use thalweg_tensor::RnnActivation;
pub use weights::{load_weights, save_weights, set_weights};
