//! Checkpoints: named tensors in parts, and a manifest that says which files belong together.
//!
//! A part is a safetensors file; the manifest lists the parts with their checksums and holds the state as JSON. Every
//! file is written beside its place, forced to disk and renamed; the manifest comes last. So a checkpoint is there
//! when its manifest is, and a process that dies in between leaves files that no manifest names, which the next one
//! removes. Old checkpoints lose their manifest first.

mod load;
mod manifest;
mod place;
mod shards;
mod writer;

pub use load::{CheckpointInfo, Loaded, inspect, load_best, load_latest, load_step};
pub use place::{Files, Hold, Place};
pub use shards::{ShardParts, save_shard};
pub use writer::{Best, Checkpoints, Keep, Snapshot};
