//! What every graph must satisfy, checked after each pass.

use crate::error::GraphError;
use crate::graph::{Graph, Kind};

/// Nodes read only earlier nodes, every op accepts its operands and gives what its node says, leaves
/// are bound, each at most once, and what is named exists.
pub fn verify(graph: &Graph) -> Result<(), GraphError> {
    let mut seen = std::collections::HashSet::new();
    for (i, node) in graph.nodes().iter().enumerate() {
        let what = || match &node.kind {
            Kind::Op(op) => op.name().to_owned(),
            other => format!("{other:?}"),
        };
        if let Some(input) = node.inputs.iter().find(|id| id.index() >= i) {
            return Err(GraphError::Order { node: i, what: what(), input: input.index() });
        }
        let bound = match &node.kind {
            Kind::Input(p) => Some((0, *p, graph.inputs.len())),
            Kind::Param(p) => Some((1, *p, graph.params.len())),
            Kind::Captured(p) => Some((2, *p, graph.n_captured)),
            Kind::Literal(_) | Kind::Op(_) => None,
        };
        if let Some((kind, position, n)) = bound {
            if position >= n {
                return Err(GraphError::Leaf { node: i, what: format!("position {position} of {n}") });
            }
            if !seen.insert((kind, position)) {
                return Err(GraphError::Leaf { node: i, what: format!("position {position} occurs twice") });
            }
        }
        if let Kind::Op(op) = &node.kind {
            let inputs: Vec<_> = node.inputs.iter().map(|&id| &graph.node(id).meta).collect();
            let gives =
                op.infer(&inputs).map_err(|source| GraphError::Op { node: i, source: Box::new(source) })?;
            if gives != node.meta {
                let says = Box::new(node.meta.clone());
                return Err(GraphError::Meta { node: i, what: what(), says, gives: Box::new(gives) });
            }
        }
    }
    for (output, id) in graph.roots().chain(graph.labels.iter().map(|&(_, id)| id)).enumerate() {
        if id.index() >= graph.nodes().len() {
            return Err(GraphError::Output { output, node: id.index() });
        }
    }
    Ok(())
}
