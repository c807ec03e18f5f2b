//! Runs graphs: [`jit`] traces a function, the passes of `thalweg-graph` improve it, a [`Plan`] lays
//! it out as a flat list of steps over one arena, and an [`Executor`] replays it without allocating.

mod arena;
mod autobatch;
mod concurrent;
mod control;
mod debug;
mod error;
mod executor;
mod explain;
mod family;
mod jit;
mod join;
mod look;
mod memory;
mod order;
mod picture;
mod plan;
mod planes;
mod print;
mod probe;
mod profile;
mod program;
mod session;
mod tree;

pub use autobatch::autobatch;
pub use control::{cond, parse_graph, scan, while_loop};
pub use debug::{Debugger, Finding, Stepped};
pub use error::RunError;
pub use executor::Executor;
pub use jit::{Jit, JitOptions, jit, jit_with};
pub use plan::{Plan, STAGES, StepInfo};
pub use probe::probe;
pub use profile::{Peak, Profile};
pub use session::{Params, Session};
pub use thalweg_tensor::{Tensor, checkpoint as remat};
pub use tree::Tree;
