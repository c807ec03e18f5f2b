//! What can be wrong with a graph.

use thalweg_tensor::{Meta, OpError};
use thiserror::Error;

/// A graph that is refused.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum GraphError {
    /// A line of text that is no node.
    #[error("line {line}: {reason}: `{text}`")]
    Text {
        /// Counted from 1.
        line: usize,
        /// What is wrong with it.
        reason: String,
        /// The line.
        text: String,
    },
    /// A node that reads a later one, or one that does not exist.
    #[error("node {node} ({what}) reads node {input}, which is not before it")]
    Order {
        /// The node's number.
        node: usize,
        /// Its op.
        what: String,
        /// The number it reads.
        input: usize,
    },
    /// An op that refuses its operands.
    #[error("node {node}: {source}")]
    Op {
        /// The node's number.
        node: usize,
        /// Why.
        source: Box<OpError>,
    },
    /// A node whose dtype and shape are not those of its op.
    #[error("node {node} ({what}) says {says}, its op gives {gives}")]
    Meta {
        /// The node's number.
        node: usize,
        /// Its op.
        what: String,
        /// What stands in the graph.
        says: Box<Meta>,
        /// What the op infers.
        gives: Box<Meta>,
    },
    /// A leaf whose position nothing is bound to, or that occurs twice.
    #[error("node {node}: {what}")]
    Leaf {
        /// The node's number.
        node: usize,
        /// What is wrong with it.
        what: String,
    },
    /// An output or a write of a node that does not exist.
    #[error("output {output} is node {node}, which does not exist")]
    Output {
        /// Position of the output.
        output: usize,
        /// The node's number.
        node: usize,
    },
    /// A name that no pass has.
    #[error("there is no pass `{name}`; there are {known}")]
    NoPass {
        /// The name.
        name: String,
        /// All names.
        known: String,
    },
    /// A pass that left a graph which is no graph any more, or another function.
    #[error("after pass `{name}`: {source}")]
    Pass {
        /// The pass.
        name: String,
        /// What is wrong now.
        source: Box<GraphError>,
    },
    /// A graph that takes or gives something else than the one it was made from.
    #[error("{what} were {before}, they are {after}")]
    Interface {
        /// Operands, params, results or the like.
        what: &'static str,
        /// As they were.
        before: String,
        /// As they are.
        after: String,
    },
    /// A name that nothing in the graph has.
    #[error("nothing is called `{name}`; known are {known}")]
    NoName {
        /// The name.
        name: String,
        /// All names.
        known: String,
    },
    /// A node that a gradient cannot be asked for.
    #[error("`{name}` is no operand and no param; there are {known}")]
    NoLeaf {
        /// The name.
        name: String,
        /// All operands and parameters.
        known: String,
    },
    /// A result without gradient.
    #[error("differentiate: `{output}`: {source}")]
    Gradient {
        /// The result.
        output: String,
        /// Why.
        source: Box<OpError>,
    },
}
