//! What can go wrong when a compiled function is called.

use std::panic::Location;

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
}

fn line(at: &Option<&'static Location<'static>>) -> String {
    at.map_or_else(String::new, |at| format!(" (at {at})"))
}
