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
    // Nodes by their hashes: keys that hold whole nodes made growing the map the larger part of the work.
    let mut seen: FxHashMap<u64, SmallVec<[NodeId; 2]>> = FxHashMap::default();
    seen.reserve(graph.nodes().len());
    graph.rewrite(|out, node| {
        if matches!(&node.kind, Kind::Op(op) if op.has_effect()) {
            return out.push(node);
        }
        let alike = seen.entry(FxBuildHasher.hash_one(key(&node))).or_default();
        match alike.iter().find(|&&id| key(out.node(id)) == key(&node)) {
            Some(&id) => id,
            None => {
                let id = out.push(node);
                alike.push(id);
                id
            }
        }
    })
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
