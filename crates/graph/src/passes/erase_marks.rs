//! Drops what only says how gradients flow: `stop_gradient`, and the rules of functions with a backward of their own.
//!
//! Not in the list of passes, since what it leaves has other gradients: it runs when a graph is compiled, after which nobody
//! differentiates it.

use crate::graph::{Graph, Kind};
use crate::passes::dce;

/// See the module.
pub fn erase_marks(graph: &Graph) -> Graph {
    let is_mark = |kind: &Kind| matches!(kind, Kind::Op(op) if op.repeats().is_some());
    if !graph.nodes().iter().any(|node| is_mark(&node.kind)) {
        return graph.clone();
    }
    let erased = graph.rewrite(|out, node| match &node.kind {
        Kind::Op(op) => match op.repeats() {
            Some(operand) => node.inputs[operand],
            None => out.push(node),
        },
        _ => out.push(node),
    });
    // A rule without its results is read by nobody.
    dce(&erased)
}

#[cfg(test)]
mod tests {
    use super::erase_marks;
    use crate::passes::check;

    #[test]
    fn what_is_compiled_has_no_marks() {
        check(
            erase_marks,
            "x = input : f32[2]; a = exp x; s = stop_gradient a; y = mul s a; t = stop_gradient y; return t",
            "x = input : f32[2]; a = exp x; y = mul a a; return y",
        );
    }
}
