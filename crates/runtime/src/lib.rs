//! Runs graphs: [`jit`] traces a function, the passes of `thalweg-graph` improve it, a [`Plan`] lays
//! it out as a flat list of steps over one arena, and an [`Executor`] replays it without allocating.

mod arena;
mod concurrent;
mod control;
mod debug;
mod error;
mod executor;
mod jit;
mod plan;
mod profile;
mod program;
mod tree;

pub use control::{cond, scan, while_loop};
pub use debug::{Debugger, Finding, Stepped, probe};
pub use error::RunError;
pub use executor::Executor;
pub use jit::{Jit, JitOptions, jit, jit_with};
pub use plan::{Plan, StepInfo};
pub use profile::{Peak, Profile};
pub use thalweg_tensor::Tensor;
pub use tree::Tree;
