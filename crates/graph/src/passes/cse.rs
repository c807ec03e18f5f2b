//! Common-subexpression elimination: equal nodes of one region become one node.
//!
//! Every op is a function of its operands (random numbers are functions of a key), so equal nodes
//! have equal values; what one does besides is done as often as it was written. Regions keep recomputed values apart: merging them would undo the
//! recomputation.

use std::hash::BuildHasher;

use rustc_hash::{FxBuildHasher, FxHashMap};
use smallvec::SmallVec;

use crate::graph::{Graph, Kind, Node, NodeId};

/// See the module.
pub fn cse(graph: &Graph) -> Graph {
    let mut seen = Seen::with_capacity(graph.nodes().len());
    graph.rewrite(|out, node| seen.earlier(out.nodes(), &node).unwrap_or_else(|| out.push(node)))
}

/// Nodes by their hashes: keys that hold whole nodes made growing the map the larger part of the work.
pub(crate) struct Seen(FxHashMap<u64, SmallVec<[NodeId; 2]>>);

impl Seen {
    pub fn with_capacity(n_nodes: usize) -> Self {
        Self(FxHashMap::with_capacity_and_hasher(n_nodes, FxBuildHasher))
    }

    /// The one among these nodes that equals the next one.
    pub fn earlier(&mut self, nodes: &[Node], next: &Node) -> Option<NodeId> {
        if matches!(&next.kind, Kind::Op(op) if op.has_effect()) {
            return None;
        }
        let alike = self.0.entry(FxBuildHasher.hash_one(key(next))).or_default();
        let equal = alike.iter().find(|id| key(&nodes[id.index()]) == key(next)).copied();
        if equal.is_none() {
            alike.push(NodeId(nodes.len() as u32));
        }
        equal
    }
}

/// What equal nodes have in common. Leaves occur once by construction; constants are the same in every region.
fn key(node: &Node) -> (&Kind, &[NodeId], u32) {
    let region = if matches!(node.kind, Kind::Op(_)) { node.region } else { 0 };
    (&node.kind, &node.inputs, region)
}

#[cfg(test)]
mod tests {
    use super::cse;
    use crate::passes::check;

    #[test]
    fn repeated_square_is_computed_once() {
        check(
            cse,
            "x = input : f32[4]; a = mul x x; b = mul x x; c = add a b; return c",
            "x = input : f32[4]; a = mul x x; c = add a a; return c",
        );
    }

    #[test]
    fn a_recomputation_is_kept() {
        let text = "x = input : f32[4]; a = exp x; b = exp x @1; c = add a b; return c";
        check(cse, text, text);
    }

    #[test]
    fn different_attributes_stay_apart() {
        let text = "x = input : f32[4, 4]; a = sum(axes:[0]) x; b = sum(axes:[1]) x; return a b";
        check(cse, text, text);
    }
}
