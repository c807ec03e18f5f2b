//! Common-subexpression elimination: equal nodes of one region become one node.
//!
//! Every op is a function of its operands (random numbers are functions of a key), so equal nodes
//! have equal values. Regions keep recomputed values apart: merging them would undo the
//! recomputation.

use std::collections::HashMap;

use smallvec::SmallVec;

use crate::graph::{Graph, Kind, NodeId};

/// See the module.
#[allow(
    clippy::mutable_key_type,
    reason = "a literal's values never change; only the tape behind a tensor could"
)]
pub fn cse(graph: &Graph) -> Graph {
    type Key = (Kind, SmallVec<[NodeId; 4]>, u32);
    let mut seen: HashMap<Key, NodeId> = HashMap::new();
    graph.rewrite(|out, node| {
        // Leaves occur once by construction; constants are the same in every region.
        let region = if matches!(node.kind, Kind::Op(_)) { node.region } else { 0 };
        let key = (node.kind.clone(), node.inputs.clone(), region);
        *seen.entry(key).or_insert_with(|| out.push(node))
    })
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
