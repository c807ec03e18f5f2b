//! Fusion: elementwise ops of one shape that feed each other form a group, which runs as one step.
//!
//! A group runs as a unit, so two groups may be joined only if no value leaves one, passes through
//! something outside and comes back into the other. Only annotates: nodes and their order stay.

use thalweg_tensor::Meta;

use crate::graph::{Graph, Kind, NodeId};

/// Larger groups would not keep their tiles in the nearest cache.
const MAX_MEMBERS: usize = 96;

/// See the module.
pub fn fuse(graph: &Graph) -> Graph {
    let mut units = Units::new(graph);
    // Readers first: what a gradient needs of a forward value is computed with the gradient, not stored beside the value.
    for id in graph.ids().rev().filter(|&id| has_tile(graph, id)) {
        for &input in &graph.node(id).inputs {
            let same_shape = graph.node(input).meta.shape == graph.node(id).meta.shape;
            if same_shape && has_tile(graph, input) && units.may_join(id, input) {
                units.join(id, input);
            }
        }
    }
    let mut out = graph.clone();
    for (group, members) in units.members.iter().filter(|m| m.len() > 1).enumerate() {
        members.iter().for_each(|&i| out.nodes_mut()[i as usize].group = group as u32 + 1);
    }
    out
}

fn has_tile(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    let Kind::Op(op) = &node.kind else { return false };
    let inputs: Vec<&Meta> = node.inputs.iter().map(|&i| &graph.node(i).meta).collect();
    node.meta.numel() > 0 && op.tile(&inputs, &node.meta).is_some()
}

/// A partition of the nodes into what runs as one.
struct Units<'a> {
    graph: &'a Graph,
    unit_of: Vec<u32>,
    /// Ascending; empty for a unit that was joined to another.
    members: Vec<Vec<u32>>,
    /// For each position, the first member of any unit that reaches to it or beyond.
    low: Vec<u32>,
}

impl<'a> Units<'a> {
    fn new(graph: &'a Graph) -> Self {
        let n = graph.nodes().len() as u32;
        let members = (0..n).map(|i| vec![i]).collect();
        Self { graph, unit_of: (0..n).collect(), members, low: (0..n).collect() }
    }

    fn unit(&self, id: NodeId) -> u32 {
        self.unit_of[id.index()]
    }

    fn may_join(&self, a: NodeId, b: NodeId) -> bool {
        let (a, b) = (self.unit(a), self.unit(b));
        let n = self.members[a as usize].len() + self.members[b as usize].len();
        a != b && n <= MAX_MEMBERS && !self.passes_outside(a, b) && !self.passes_outside(b, a)
    }

    fn join(&mut self, a: NodeId, b: NodeId) {
        let (a, b) = (self.unit(a), self.unit(b));
        let moved = std::mem::take(&mut self.members[b as usize]);
        moved.iter().for_each(|&i| self.unit_of[i as usize] = a);
        let all = &mut self.members[a as usize];
        all.extend(moved);
        all.sort_unstable();
        let (first, last) = (all[0], all[all.len() - 1]);
        for low in &mut self.low[first as usize..=last as usize] {
            *low = first.min(*low);
        }
    }

    /// The units that a unit reads, itself left out.
    fn reads(&self, unit: u32) -> impl Iterator<Item = u32> + '_ {
        let inputs = self.members[unit as usize].iter().flat_map(|&i| &self.graph.nodes()[i as usize].inputs);
        inputs.map(|&i| self.unit(i)).filter(move |&u| u != unit)
    }

    /// Whether a value of `from` reaches `to` through a third unit.
    fn passes_outside(&self, from: u32, to: u32) -> bool {
        // What ends before `from` begins cannot depend on it, unless a unit reaches from behind that place to before it.
        let mut first = self.members[from as usize][0];
        while self.low[first as usize] < first {
            first = self.low[first as usize];
        }
        let could = |u: u32| self.members[u as usize].last().is_some_and(|&last| last >= first);
        let mut seen = std::collections::HashSet::new();
        let mut stack: Vec<u32> = self.reads(to).filter(|&u| u != from && could(u)).collect();
        while let Some(unit) = stack.pop() {
            if unit == from {
                return true;
            }
            if unit != to && seen.insert(unit) {
                stack.extend(self.reads(unit).filter(|&u| could(u)));
            }
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::fuse;
    use crate::passes::check;

    #[test]
    fn a_chain_becomes_one_group() {
        check(
            fuse,
            "x = input : f32[4]; a = exp x; b = mul a x; c = add b a; return c",
            "x = input : f32[4]; a = exp x #1; b = mul a x #1; c = add b a #1; return c",
        );
    }

    #[test]
    fn branches_that_meet_are_one_group() {
        check(
            fuse,
            "x = input : f32[4]; a = exp x; b = tanh x; c = add a b; return c a",
            "x = input : f32[4]; a = exp x #1; b = tanh x #1; c = add a b #1; return c a",
        );
    }

    #[test]
    fn a_detour_through_a_reduction_keeps_groups_apart() {
        // exp → sum → broadcast → div: exp and div must not run as one unit.
        check(
            fuse,
            "x = input : f32[4]; a = exp x; s = sum(axes:[0]) a; b = broadcast(shape:[4]) s; \
             c = div a b; d = neg c; return d",
            "x = input : f32[4]; a = exp x; s = sum(axes:[0]) a; b = broadcast(shape:[4]) s; \
             c = div a b #1; d = neg c #1; return d",
        );
    }

    #[test]
    fn shapes_are_not_mixed() {
        let text = "x = input : f32[4]; a = exp x; b = reshape(shape:[2,2]) a; c = neg b; return c";
        check(fuse, text, text);
    }
}
