//! Passes: each a function from graph to graph in a file of its own.
//!
//! To add one: write its file, add its line to [`PASSES`]. [`optimise`] runs them in order and
//! verifies the graph after each in debug builds; each can be switched off by name.

mod algebra;
mod canonicalise;
mod chain;
mod cse;
mod dce;
mod factors;
mod fold;
mod fuse;
mod merge_siblings;
mod rematerialise;

use crate::error::GraphError;
use crate::graph::Graph;

pub use algebra::algebra;
pub use canonicalise::canonicalise;
pub use cse::cse;
pub use dce::dce;
pub use fold::fold;
pub use fuse::fuse;
pub use merge_siblings::merge_siblings;
pub use rematerialise::rematerialise;

/// A pass.
pub type Pass = fn(&Graph) -> Graph;

/// All passes in the order in which they run.
pub const PASSES: &[(&str, Pass)] = &[
    ("dce", dce),
    ("fold", fold),
    ("canonicalise", canonicalise),
    ("cse", cse),
    ("algebra", algebra),
    ("merge_siblings", merge_siblings),
    ("sweep", dce),
    ("fuse", fuse),
];

/// Passes that only annotate: they come last, and a pass that adds nodes is run before them.
pub const ANNOTATING: &[&str] = &["fuse"];

/// Passes that change the order of float operations: with them, results agree with eager execution
/// within rounding, without them bit for bit.
pub const REORDERING: &[&str] = &["algebra", "merge_siblings"];

/// Runs every pass that `is_on` admits.
pub fn optimise(graph: &Graph, is_on: impl Fn(&str) -> bool) -> Graph {
    let mut graph = graph.clone();
    for (name, pass) in PASSES.iter().filter(|(name, _)| is_on(name)) {
        graph = pass(&graph);
        if cfg!(debug_assertions) {
            crate::verify(&graph).unwrap_or_else(|e| panic!("after pass `{name}`: {e}\n{graph}"));
        }
    }
    graph
}

/// Runs one pass by name.
pub fn run(name: &str, graph: &Graph) -> Result<Graph, GraphError> {
    match PASSES.iter().find(|(n, _)| *n == name) {
        Some((_, pass)) => Ok(pass(graph)),
        None => {
            let known = PASSES.iter().map(|(n, _)| *n).collect::<Vec<_>>().join(", ");
            Err(GraphError::NoPass { name: name.to_owned(), known })
        }
    }
}

/// Parses, runs a pass, and compares texts; both sides are parsed, so that names may differ.
#[cfg(test)]
pub(crate) fn check(pass: Pass, before: &str, after: &str) {
    let graph: Graph = before.parse().unwrap_or_else(|e| panic!("{e}"));
    let changed = pass(&graph);
    crate::verify(&changed).unwrap_or_else(|e| panic!("{e}\n{changed}"));
    let want: Graph = after.parse().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(changed.to_string(), want.to_string());
}
