//! Dead-code elimination: what no result, no write and no effect depends on is dropped.
//!
//! Keeps operands, which have positions, and the order of everything else. An op that could only
//! fail (an index out of range) is dropped as well when nobody reads it.

use crate::graph::{Graph, Kind};

/// See the module.
pub fn dce(graph: &Graph) -> Graph {
    let live = live(graph);
    let mut renamed = vec![crate::NodeId(u32::MAX); live.len()];
    let mut out = graph.like();
    for (position, (node, live)) in graph.nodes().iter().zip(&live).enumerate() {
        if *live || matches!(node.kind, Kind::Input(_)) {
            let mut node = node.clone();
            node.inputs.iter_mut().for_each(|i| *i = renamed[i.index()]);
            renamed[position] = out.push(node);
        }
    }
    out.outputs = graph.outputs.iter().map(|(name, id)| (name.clone(), renamed[id.index()])).collect();
    out.writes = graph.writes.iter().map(|&(p, id)| (p, renamed[id.index()])).collect();
    out
}

/// Which nodes something depends on.
pub(crate) fn live(graph: &Graph) -> Vec<bool> {
    let mut live = vec![false; graph.nodes().len()];
    graph.roots().chain(graph.effects()).for_each(|id| live[id.index()] = true);
    for id in graph.ids().rev() {
        if live[id.index()] {
            graph.node(id).inputs.iter().for_each(|i| live[i.index()] = true);
        }
    }
    live
}

#[cfg(test)]
mod tests {
    use super::dce;
    use crate::passes::check;

    #[test]
    fn what_nobody_reads_goes_and_operands_stay() {
        check(
            dce,
            "x = input : f32[4]; y = input : f32[4]; a = mul x x; b = exp a; return a",
            "x = input : f32[4]; y = input : f32[4]; a = mul x x; return a",
        );
    }

    #[test]
    fn what_a_write_needs_stays() {
        let text = "w = param : f32[4]; a = mul w w; write w a; return";
        check(dce, text, text);
    }
}
