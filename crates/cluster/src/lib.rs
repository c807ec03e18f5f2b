//! The parameter server: pushes that count exactly once, and a consistency that the user chooses.
//!
//! Everything that decides anything is a state machine without I/O: [`state`] (one shard), [`replica`]
//! (its place in a chain), [`server`], [`session`] (a worker's side), [`coordinator`] (the membership).
//! Messages and the time come in, messages go out. [`simulate`] drives exactly this code through loss,
//! reordering, crashes, partitions and pauses.

mod cluster;
pub mod codec;
pub mod control;
pub mod coordinator;
mod dividing;
mod doing;
mod error;
mod hogwild;
mod ids;
mod joining;
mod landing;
mod layout;
mod leaving;
mod local;
mod mechanisms;
pub mod message;
pub mod net;
#[cfg(feature = "object-store")]
mod objects;
mod optimise;
mod packing;
pub mod placement;
pub mod programs;
pub mod replica;
mod report;
mod ring;
mod rule;
mod say;
pub mod server;
pub mod session;
pub mod simulate;
mod slots;
mod snapshot;
pub mod state;
mod storage;
mod sync;
pub mod table;
mod training;
mod values;
pub mod view;
pub mod wire;
mod work;

pub use cluster::{Cluster, Gradients, Program, Pulled, Run, Step};
pub use doing::Doing;
pub use error::{ClusterError, Refusal, Unwelcome};
pub use hogwild::Hogwild;
pub use ids::{CallId, Clock, Epoch, Peer, RunId, ServerId, SessionId, ShardId, Slot, TableId};
pub use layout::{Layout, TableSpec};
pub use local::{Averaging, LocalSteps};
pub use mechanisms::Mechanisms;
#[cfg(feature = "object-store")]
pub use objects::{place, place_with};
pub use optimise::{Moved, Rates, by_optimizer};
pub use report::{Progress, Report, Standing};
pub use rule::{Function, Jointly, Registry, Rule, UpdateRule};
pub use say::say;
pub use storage::Storage;
pub use sync::Sync;
pub use training::{OnCluster, Trained, Training};
pub use values::Values;
