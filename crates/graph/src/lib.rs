//! The dataflow graph of a function: what a trace recorded, made ready to be changed and run.
//!
//! A [`Graph`] is a list of nodes in topological order over the ops of `thalweg-tensor`. It has a
//! [text form](text), a [verifier](verify) and [passes], each a function from graph to graph. It
//! does no I/O and runs nothing (folding constants calls reference kernels).

mod batch;
mod builder;
mod differentiate;
mod dot;
mod error;
mod evaluate;
mod graph;
mod literal;
mod memory;
mod names;
pub mod passes;
mod rule;
mod template;
pub mod text;
mod traced;
mod verify;

pub use batch::batch;
pub use builder::Builder;
pub use error::GraphError;
pub use graph::{Graph, Kind, Node, NodeId};
pub use literal::Literal;
pub use template::Template;
pub use traced::{Closed, Traced};
pub use verify::verify;
