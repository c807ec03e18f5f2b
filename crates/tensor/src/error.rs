//! What can be wrong with a call of an op. Messages name the op, the shapes and the fix.

use std::panic::Location;

use thalweg_core::{DType, Shape, ShapeError};
use thiserror::Error;

/// A call that an op refuses. Nothing was computed and nothing was changed.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum OpError {
    /// A shape or axis that does not fit.
    #[error("{op}: {source}")]
    Shape {
        /// The op.
        op: &'static str,
        /// What is wrong with the shape.
        source: ShapeError,
    },
    /// A wrong number of operands.
    #[error("{op}: takes {want} operands, got {got}")]
    Arity {
        /// The op.
        op: &'static str,
        /// How many it takes.
        want: usize,
        /// How many came.
        got: usize,
    },
    /// A dtype the op is not defined for.
    #[error("{op}: dtype {got} is not {want} (convert with `.to_dtype(..)`)")]
    DType {
        /// The op.
        op: &'static str,
        /// The kind of dtype it takes.
        want: &'static str,
        /// The dtype that came.
        got: DType,
    },
    /// Operands whose dtypes must be equal and are not.
    #[error("{op}: dtypes {left} and {right} differ (convert one with `.to_dtype(..)`)")]
    DTypes {
        /// The op.
        op: &'static str,
        /// The dtype of the first operand.
        left: DType,
        /// The dtype of the other.
        right: DType,
    },
    /// Operands whose shapes do not fit each other.
    #[error("{op}: shapes {left} and {right} do not fit: {hint}")]
    Shapes {
        /// The op.
        op: &'static str,
        /// The shape of the first operand.
        left: Shape,
        /// The shape of the other.
        right: Shape,
        /// Which sizes must agree, and what to do.
        hint: &'static str,
    },
    /// An operand with the wrong number of axes.
    #[error("{op}: shape {shape} has {} axes, need {want}", shape.rank())]
    Rank {
        /// The op.
        op: &'static str,
        /// How many axes it takes.
        want: &'static str,
        /// The shape that came.
        shape: Shape,
    },
    /// An index outside its axis.
    #[error("{op}: index {index} is out of range for an axis of size {size}")]
    Index {
        /// The op.
        op: &'static str,
        /// The index as given.
        index: i64,
        /// The size of the axis.
        size: usize,
    },
    /// An argument that is no tensor and does not fit.
    #[error("{op}: {name} = {value} for shape {shape}: {need}")]
    Argument {
        /// The op.
        op: &'static str,
        /// The argument's name.
        name: &'static str,
        /// Its value.
        value: String,
        /// The shape of the operand it was meant for.
        shape: Shape,
        /// What it must be.
        need: &'static str,
    },
    /// A reduction without identity over no elements.
    #[error("{op}: shape {shape} has no elements to choose from")]
    Empty {
        /// The op.
        op: &'static str,
        /// The shape of the operand.
        shape: Shape,
    },
    /// Values for which the op has no result.
    #[error("{op}: {reason}")]
    Value {
        /// The op.
        op: &'static str,
        /// Why there is no result.
        reason: &'static str,
    },
    /// A gradient asked of something that has none.
    #[error("{op}: no gradient: {reason}")]
    NoGradient {
        /// The op, or the function that was asked.
        op: &'static str,
        /// Why, and what to do instead.
        reason: &'static str,
    },
    /// A gradient asked through an op that has none.
    #[error("{op}: no gradient: {reason} (applied at {at})")]
    NotDifferentiable {
        /// The op.
        op: &'static str,
        /// Why, and what to do instead.
        reason: &'static str,
        /// The line that applied it.
        at: &'static Location<'static>,
    },
    /// A parameter that the loss does not depend on.
    #[error(
        "grad: `{name}` gets no gradient: the result does not depend on it (use it, freeze it, or ask `grad_or_zeros`)"
    )]
    Unused {
        /// The parameter's name, or the position of a plain tensor.
        name: String,
    },
    /// Values asked of a tensor that is being traced.
    #[error(
        "read: this value is traced and has no data yet (made at {made}, read at {at}): inside `jit`, decide on it with `where_`, `cond`, `while_loop` or `scan`, or read it outside and pass it in as a plain number"
    )]
    TracedRead {
        /// The line that made it.
        made: &'static Location<'static>,
        /// The line that reads it.
        at: &'static Location<'static>,
    },
    /// A result whose shape only the values of a traced tensor could tell.
    #[error(
        "{op}: the shape of the result depends on values that are traced and not known yet (made at {made}, used at {at}): inside `jit` every shape is fixed; keep the shape and mask with `where_`, or call `{op}` outside and pass its result in"
    )]
    DataShape {
        /// The function.
        op: &'static str,
        /// The line that made the value.
        made: &'static Location<'static>,
        /// The line that needs its values.
        at: &'static Location<'static>,
    },
    /// A value of a trace that is over.
    #[error(
        "{op}: this value belongs to a function that has been traced already (made at {made}, used at {at}): a value that is kept from inside `jit` has no data; return it from the function and use what the call gives"
    )]
    Leaked {
        /// What was to be done with it.
        op: &'static str,
        /// The line that made it.
        made: &'static Location<'static>,
        /// The line that uses it.
        at: &'static Location<'static>,
    },
    /// Operands that belong to different traces.
    #[error(
        "{op}: values of two traces meet at {at} (made at {made}{}): each traced function can use its own values only; return the value from its function and pass it on as an argument", and(.other)
    )]
    MixedTraces {
        /// The op.
        op: &'static str,
        /// The line that made the value of the other trace.
        made: &'static Location<'static>,
        /// The line at which they meet.
        at: &'static Location<'static>,
        /// The line that made the operand of the trace under way, if there is one.
        other: Option<&'static Location<'static>>,
    },
    /// What a user's own op says.
    #[error("{op}: {reason}")]
    Custom {
        /// The user's op.
        op: String,
        /// Its own words.
        reason: String,
    },
}

fn and(other: &Option<&'static Location<'static>>) -> String {
    other.map_or_else(String::new, |at| format!(" and at {at}"))
}

/// Panics with the error at the caller's line: inside ops, a wrong shape is a programming error.
#[cold]
#[track_caller]
pub(crate) fn fail(error: OpError) -> ! {
    panic!("{error}")
}

/// Unwraps at the caller's line.
#[inline]
#[track_caller]
pub(crate) fn or_fail<T>(result: Result<T, OpError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => fail(error),
    }
}

/// Puts the op's name before a shape error.
pub(crate) trait InOp<T> {
    fn in_op(self, op: &'static str) -> Result<T, OpError>;
}

impl<T> InOp<T> for Result<T, ShapeError> {
    fn in_op(self, op: &'static str) -> Result<T, OpError> {
        self.map_err(|source| OpError::Shape { op, source })
    }
}
