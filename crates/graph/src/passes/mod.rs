//! Passes: each a function from graph to graph in a file of its own.
//!
//! To add one: write its file, add its line to [`PASSES`]. [`optimise`] runs them in order and
//! verifies the graph after each in debug builds; each can be switched off by name. A user's own pass
//! is run by [`checked`], which trusts it with nothing.

mod algebra;
mod canonicalise;
mod chain;
mod cse;
mod dce;
mod erase_marks;
mod factors;
mod fold;
mod fuse;
mod merge_siblings;
mod rematerialise;

use crate::error::GraphError;
use crate::graph::{Graph, NodeId};

pub use algebra::algebra;
pub use canonicalise::canonicalise;
pub(crate) use cse::Seen;
pub use cse::cse;
pub use dce::dce;
pub(crate) use dce::live;
pub use erase_marks::erase_marks;
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

/// Runs a pass that need not be right: what it gives must be a graph with the same operands, parameters,
/// results and writes.
///
/// ```
/// use thalweg_graph::{Graph, passes};
/// let graph: Graph = "x = input : f32[2]; y = exp x; return y".parse().unwrap();
/// let forgets = |graph: &Graph| graph.like();
/// let error = passes::checked("forgets", forgets, &graph).unwrap_err();
/// assert_eq!(error.to_string(), "after pass `forgets`: results were f32[2], they are none");
/// ```
pub fn checked(name: &str, pass: impl Fn(&Graph) -> Graph, graph: &Graph) -> Result<Graph, GraphError> {
    let changed = pass(graph);
    let sound = crate::verify(&changed).and_then(|()| same_interface(graph, &changed));
    match sound {
        Ok(()) => Ok(changed),
        Err(source) => Err(GraphError::Pass { name: name.to_owned(), source: Box::new(source) }),
    }
}

fn same_interface(before: &Graph, after: &Graph) -> Result<(), GraphError> {
    let list = |words: Vec<String>| if words.is_empty() { "none".to_owned() } else { words.join(", ") };
    let sides = |of: &dyn Fn(&Graph) -> Vec<String>| (list(of(before)), list(of(after)));
    let written = |g: &Graph, &(p, id): &(usize, NodeId)| format!("{p}: {}", g.node(id).meta);
    let parts = [
        ("operands", sides(&|g| g.inputs.clone())),
        ("params", sides(&|g| g.params.clone())),
        ("captured tensors", (before.n_captured.to_string(), after.n_captured.to_string())),
        ("results", sides(&|g| g.outputs.iter().map(|(_, id)| g.node(*id).meta.to_string()).collect())),
        ("writes", sides(&|g| g.writes.iter().map(|w| written(g, w)).collect())),
    ];
    match parts.into_iter().find(|(_, (before, after))| before != after) {
        Some((what, (before, after))) => Err(GraphError::Interface { what, before, after }),
        None => Ok(()),
    }
}

/// Parses, runs a pass, and compares texts; both sides are parsed, so that names may differ.
#[cfg(test)]
pub(crate) fn check(pass: impl Fn(&Graph) -> Graph, before: &str, after: &str) {
    let graph: Graph = before.parse().unwrap_or_else(|e| panic!("{e}"));
    let changed = pass(&graph);
    crate::verify(&changed).unwrap_or_else(|e| panic!("{e}\n{changed}"));
    let want: Graph = after.parse().unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(changed.to_string(), want.to_string());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_run_by_name() {
        let graph: Graph = "x = input : f32[2]; a = exp x; b = exp x; y = add a b; return y".parse().unwrap();
        for (name, pass) in PASSES {
            assert_eq!(run(name, &graph).unwrap().to_string(), pass(&graph).to_string(), "{name}");
        }
        let merged = run("dce", &run("cse", &graph).unwrap()).unwrap();
        assert_eq!((graph.nodes().len(), merged.nodes().len()), (4, 3));
        let error = run("cleverness", &graph).unwrap_err().to_string();
        assert!(error.starts_with("there is no pass `cleverness`; there are dce, fold, "), "{error}");
    }

    #[test]
    fn a_pass_that_breaks_the_graph_is_named() {
        let graph: Graph = "x = input : f32[2]; y = exp x; z = sum(axes:[0]) y; return z".parse().unwrap();
        let refusal = |pass: &dyn Fn(&mut Graph)| {
            let pass = |graph: &Graph| {
                let mut changed = graph.clone();
                pass(&mut changed);
                changed
            };
            checked("mine", pass, &graph).unwrap_err().to_string()
        };
        assert!(checked("mine", Graph::clone, &graph).is_ok());
        let later = refusal(&|g| g.nodes_mut()[1].inputs[0] = NodeId(2));
        assert_eq!(later, "after pass `mine`: node 1 (exp) reads node 2, which is not before it");
        let shape = refusal(&|g| g.nodes_mut()[1].meta = g.node(NodeId(2)).meta.clone());
        assert!(shape.contains("node 1 (exp) says f32[], its op gives f32[2]"), "{shape}");
        let other = refusal(&|g| g.outputs[0].1 = NodeId(1));
        assert_eq!(other, "after pass `mine`: results were f32[], they are f32[2]");
        let operands = refusal(&|g| g.inputs.push("z".to_owned()));
        assert_eq!(operands, "after pass `mine`: operands were x0, they are x0, z");
    }
}
