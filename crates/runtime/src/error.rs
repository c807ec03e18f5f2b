//! What can go wrong when a compiled function is called.

use std::panic::Location;

use thalweg_graph::GraphError;
use thalweg_tensor::{Meta, OpError};
use thiserror::Error;

/// A compiled call that failed. Results are not handed out.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum RunError {
    /// An op refused the values it met.
    #[error("{source}{}", line(.at))]
    Op {
        /// What the op says.
        source: Box<OpError>,
        /// The user's line.
        at: Option<&'static Location<'static>>,
    },
    /// Another number of operands than the plan has.
    #[error("run: {got} operands, the plan takes {want}")]
    Arity {
        /// How many the plan takes.
        want: usize,
        /// How many came.
        got: usize,
    },
    /// An operand of another dtype or shape than the plan was made for.
    #[error("run: operand {position} is {got}, the plan was made for {want}")]
    Operand {
        /// Its position.
        position: usize,
        /// What the plan was made for.
        want: Box<Meta>,
        /// What came.
        got: Box<Meta>,
    },
    /// A graph that cannot be run.
    #[error(transparent)]
    Graph(#[from] GraphError),
    /// A name that nothing of its kind has.
    #[error("there is no {role} `{name}`; there are {known}")]
    NoName {
        /// Feed or param.
        role: &'static str,
        /// The name.
        name: String,
        /// All names.
        known: String,
    },
    /// Something that needs a value and got none.
    #[error("no value was given for {role} {names}")]
    Unbound {
        /// Operand or param.
        role: &'static str,
        /// Their names.
        names: String,
    },
    /// A parameter or operand whose value is not of the graph's dtype and shape.
    #[error("`{name}` is {got}, the graph says {want}")]
    Bound {
        /// Its name.
        name: String,
        /// What stands in the graph.
        want: Box<Meta>,
        /// What it is bound to.
        got: Box<Meta>,
    },
    /// A graph that captured tensors, without them.
    #[error("the graph captured {n_captured} tensors; bind them with `Session::bound`")]
    Captured {
        /// How many.
        n_captured: usize,
    },
}

fn line(at: &Option<&'static Location<'static>>) -> String {
    at.map_or_else(String::new, |at| format!(" (at {at})"))
}
