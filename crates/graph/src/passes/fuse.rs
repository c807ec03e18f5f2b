//! Fusion: ops that run as one step while their values are in the nearest cache.
//!
//! First elementwise ops of one shape that feed each other form a group. Then ops on rows (sums and extremes over the last
//! axes, softmax, norms, their gradients) take the groups before and behind them into theirs: what is computed of each row,
//! and of the one number that a row was reduced to, however often. A reshape or broadcast in between costs nothing and comes along.
//!
//! A group runs as a unit, so two groups may be joined only if no value leaves one, passes through
//! something outside and comes back into the other; an op with an effect counts as reading the one before it. Only annotates: nodes and their order stay.

use std::collections::{HashMap, HashSet};

use smallvec::SmallVec;
use thalweg_core::Layout;
use thalweg_tensor::Meta;
use thalweg_tensor::ops::Op;

use crate::graph::{Graph, Kind, NodeId};

/// Larger groups would not keep their tiles in the nearest cache.
const MAX_MEMBERS: usize = 96;
/// Longer rows would not stay in a near cache from one op to the next.
const MAX_ROW: usize = 16 << 10;

/// See the module.
pub fn fuse(graph: &Graph) -> Graph {
    let mut units = Units::new(graph);
    // Readers first: what a gradient needs of a forward value is computed with the gradient, not stored beside the value.
    for id in graph.ids().rev() {
        for &input in &graph.node(id).inputs {
            let same_shape = graph.node(input).meta.shape == graph.node(id).meta.shape;
            let elementwise = [id, input].iter().all(|&i| units.role(i) == Role::Elementwise);
            if same_shape && elementwise && units.may_join(id, input) {
                units.join(id, input);
            }
        }
    }
    for id in graph.ids() {
        units.join_rows(id);
    }
    units.drop_views();
    let mut out = graph.clone();
    for (group, members) in units.members.iter().filter(|m| m.len() > 1).enumerate() {
        members.iter().for_each(|&i| out.nodes_mut()[i as usize].group = group as u32 + 1);
    }
    out
}

/// What a node can be in a group.
#[derive(Clone, Copy, PartialEq)]
enum Role {
    Elementwise,
    OnRows(Rows),
    /// A reshape, or a broadcast that repeats each element along the last axes.
    View,
    /// It runs by itself.
    None,
}

/// What a group with ops on rows is about: so many rows of so many elements.
#[derive(Clone, Copy, PartialEq)]
struct Rows {
    n: usize,
    cols: usize,
}

impl Rows {
    /// Whether a value has an element for each element of the rows, or one for each row.
    fn holds(self, meta: &Meta) -> bool {
        meta.numel() == self.n * self.cols || meta.numel() == self.n
    }
}

impl Role {
    fn of(graph: &Graph, id: NodeId) -> Self {
        let node = graph.node(id);
        let Kind::Op(op) = &node.kind else { return Role::None };
        let inputs: SmallVec<[&Meta; 3]> = node.inputs.iter().map(|&i| &graph.node(i).meta).collect();
        if node.meta.numel() == 0 {
            return Role::None;
        }
        if op.tile(&inputs, &node.meta).is_some() {
            return Role::Elementwise;
        }
        if let Some((cols, _)) = op.on_rows(&inputs, &node.meta) {
            let rows = Rows { n: inputs[0].numel() / cols.max(1), cols };
            let fits = (2..=MAX_ROW).contains(&cols) && node.inputs.iter().all(|&i| is_dense(graph, i));
            return if fits { Role::OnRows(rows) } else { Role::None };
        }
        match op {
            Op::Reshape(_) => Role::View,
            Op::Broadcast(_) if repeats_elements(&inputs[0].shape, &node.meta.shape) => Role::View,
            _ => Role::None,
        }
    }
}

/// Whether a value is known to lie in row-major order: in eager code some sums follow the order in memory.
fn is_dense(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    match &node.kind {
        Kind::Input(_) | Kind::Param(_) => true,
        Kind::Captured(_) | Kind::Literal(_) => false,
        Kind::Op(Op::Reshape(_)) => is_dense(graph, node.inputs[0]),
        Kind::Op(op) => node.inputs.first().is_none_or(|&x| {
            let x = Layout::contiguous(graph.node(x).meta.shape.clone());
            op.view(&x, &node.meta.shape).is_none()
        }),
    }
}

fn repeats_elements(from: &[usize], to: &[usize]) -> bool {
    let n_same = from.iter().zip(to).take_while(|(a, b)| a == b).count();
    from.len() == to.len() && from[n_same..].iter().all(|&d| d == 1)
}

/// A partition of the nodes into what runs as one.
struct Units<'a> {
    graph: &'a Graph,
    roles: Vec<Role>,
    unit_of: Vec<u32>,
    /// Ascending; empty for a unit that was joined to another.
    members: Vec<Vec<u32>>,
    /// For each unit with an op on rows.
    rows: Vec<Option<Rows>>,
    readers: Vec<Vec<NodeId>>,
    /// For each op with an effect, the one that must run before it.
    effect_before: HashMap<u32, NodeId>,
    /// For each position, the first member of any unit that reaches to it or beyond.
    low: Vec<u32>,
}

impl<'a> Units<'a> {
    fn new(graph: &'a Graph) -> Self {
        let n = graph.nodes().len() as u32;
        let members = (0..n).map(|i| vec![i]).collect();
        let roles: Vec<Role> = graph.ids().map(|id| Role::of(graph, id)).collect();
        let rows = roles.iter().map(|role| if let Role::OnRows(rows) = role { Some(*rows) } else { None });
        let rows = rows.collect();
        let mut readers = vec![Vec::new(); n as usize];
        for id in graph.ids() {
            graph.node(id).inputs.iter().for_each(|&input| readers[input.index()].push(id));
        }
        let effects: Vec<NodeId> = graph.effects().collect();
        let effect_before = effects.windows(2).map(|two| (two[1].0, two[0])).collect();
        let (unit_of, low) = ((0..n).collect(), (0..n).collect());
        Self { graph, roles, unit_of, members, rows, readers, effect_before, low }
    }

    fn role(&self, id: NodeId) -> Role {
        self.roles[id.index()]
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
        self.rows[a as usize] = self.rows[a as usize].or(self.rows[b as usize]);
        let all = &mut self.members[a as usize];
        all.extend(moved);
        all.sort_unstable();
        let (first, last) = (all[0], all[all.len() - 1]);
        for low in &mut self.low[first as usize..=last as usize] {
            *low = first.min(*low);
        }
    }

    /// Joins a node to those that it reads, if that makes or extends a unit with ops on rows.
    fn join_rows(&mut self, id: NodeId) {
        let graph = self.graph;
        for &input in &graph.node(id).inputs {
            if self.fits_rows(id, input) && self.may_join(id, input) {
                self.join(id, input);
                // What is in between comes along, and is dropped in the end if that was of no use.
                if self.role(input) == Role::View {
                    self.join_rows(input);
                }
            }
        }
    }

    /// Whether the units of a node and of what it reads can be one with ops on rows.
    fn fits_rows(&self, id: NodeId, input: NodeId) -> bool {
        let (own, other) = (self.unit(id), self.unit(input));
        let rows = match (self.rows[own as usize], self.rows[other as usize]) {
            (Some(rows), Some(others)) if rows != others => return false,
            (Some(rows), _) | (_, Some(rows)) => rows,
            (None, None) => return false,
        };
        let meta = |i: u32| &self.graph.nodes()[i as usize].meta;
        let fits = |unit: u32| {
            self.rows[unit as usize].is_some()
                || self.members[unit as usize].iter().all(|&i| rows.holds(meta(i)))
                    && !self.continues_product(unit)
        };
        // An operand that is one row long is the same for all rows: not a value of the group.
        let is_shared =
            matches!(self.role(id), Role::OnRows(_)) && meta(input.0).numel() != rows.n * rows.cols;
        self.role(id) != Role::None
            && self.role(input) != Role::None
            && !is_shared
            && fits(own)
            && fits(other)
    }

    /// Whether a group of elementwise ops has the result of a product or convolution for itself: it runs with that, piece by
    /// piece, and the pieces are not rows.
    fn continues_product(&self, unit: u32) -> bool {
        let is_own = |&input: &NodeId| {
            self.graph.op(input).is_some_and(Op::is_ready_in_pieces)
                && self.readers[input.index()].iter().all(|&reader| self.unit(reader) == unit)
        };
        let members = &self.members[unit as usize];
        members.iter().any(|&i| self.graph.nodes()[i as usize].inputs.iter().any(is_own))
    }

    /// Leaves reshapes and broadcasts out of the units that do not compute what they show, or do not read it.
    fn drop_views(&mut self) {
        let graph = self.graph;
        for i in (0..graph.nodes().len()).rev() {
            // Readers come after what they read, and lose their place first.
            self.drop_view(NodeId(i as u32), |units, id, unit| {
                !units.readers[id.index()].iter().any(|&reader| units.unit(reader) == unit)
            });
        }
        for i in 0..graph.nodes().len() {
            self.drop_view(NodeId(i as u32), |units, id, unit| units.unit(graph.node(id).inputs[0]) != unit);
        }
    }

    fn drop_view(&mut self, id: NodeId, is_useless: impl Fn(&Self, NodeId, u32) -> bool) {
        let unit = self.unit(id);
        let is_useless = || is_useless(self, id, unit);
        if self.members[unit as usize].len() > 1 && self.role(id) == Role::View && is_useless() {
            self.members[unit as usize].retain(|&i| i != id.0);
            self.unit_of[id.index()] = self.members.len() as u32;
            self.members.push(vec![id.0]);
            self.rows.push(None);
        }
    }

    /// The units that a unit reads, itself left out.
    fn reads(&self, unit: u32) -> impl Iterator<Item = u32> + '_ {
        let members = &self.members[unit as usize];
        let effects = members.iter().filter_map(|i| self.effect_before.get(i));
        let inputs = members.iter().flat_map(|&i| &self.graph.nodes()[i as usize].inputs).chain(effects);
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
        let mut seen = HashSet::new();
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
    fn a_detour_through_a_product_keeps_groups_apart() {
        // exp → matmul → div: exp and div must not run as one unit.
        check(
            fuse,
            "x = input : f32[4,4]; a = exp x; s = matmul a x; c = div a s; d = neg c; return d",
            "x = input : f32[4,4]; a = exp x; s = matmul a x; c = div a s #1; d = neg c #1; return d",
        );
    }

    #[test]
    fn a_softmax_by_hand_is_one_group() {
        check(
            fuse,
            "x = input : f32[3,4]; m = extremum(kind:Max,axes:[1]) x; m1 = reshape(shape:[3,1]) m; \
             m2 = broadcast(shape:[3,4]) m1; a = sub x m2; e = exp a; s = sum(axes:[1]) e; \
             s1 = reshape(shape:[3,1]) s; s2 = broadcast(shape:[3,4]) s1; y = div e s2; return y",
            "x = input : f32[3,4]; m = extremum(kind:Max,axes:[1]) x #1; m1 = reshape(shape:[3,1]) m #1; \
             m2 = broadcast(shape:[3,4]) m1 #1; a = sub x m2 #1; e = exp a #1; s = sum(axes:[1]) e #1; \
             s1 = reshape(shape:[3,1]) s #1; s2 = broadcast(shape:[3,4]) s1 #1; y = div e s2 #1; return y",
        );
    }

    #[test]
    fn rows_that_are_reduced_take_what_comes_before_and_behind() {
        check(
            fuse,
            "x = input : f32[3,4]; a = square x; s = sum(axes:[1]) a; r = sqrt s; return r",
            "x = input : f32[3,4]; a = square x #1; s = sum(axes:[1]) a #1; r = sqrt s #1; return r",
        );
        // Over the first axis the rows of a result are not those of the operand.
        let text = "x = input : f32[3,4]; a = square x; s = sum(axes:[0]) a; return s";
        check(fuse, text, text);
    }

    #[test]
    fn a_norm_between_reshapes_takes_the_sum_before_it() {
        check(
            fuse,
            "x = input : f32[2,3,4]; w = input : f32[4]; a = add x x; b = reshape(shape:[6,4]) a; \
             n = layer_norm(eps:0.5) b w; y = reshape(shape:[2,3,4]) n; return y",
            "x = input : f32[2,3,4]; w = input : f32[4]; a = add x x #1; b = reshape(shape:[6,4]) a #1; \
             n = layer_norm(eps:0.5) b w #1; y = reshape(shape:[2,3,4]) n; return y",
        );
    }

    #[test]
    fn a_group_that_continues_a_product_stays_with_it() {
        let text = "x = input : f32[4,4]; p = matmul x x; a = add p x; y = softmax a; return y";
        check(fuse, text, text);
    }

    #[test]
    fn rows_of_different_length_are_groups_of_their_own() {
        check(
            fuse,
            "x = input : f32[2,3,4]; a = exp x; s = sum(axes:[2]) a; t = sum(axes:[1,2]) a; \
             u = sqrt s; v = sqrt t; return u v",
            "x = input : f32[2,3,4]; a = exp x #1; s = sum(axes:[2]) a #1; t = sum(axes:[1,2]) a #2; \
             u = sqrt s #1; v = sqrt t #2; return u v",
        );
    }

    #[test]
    fn shapes_are_not_mixed() {
        let text = "x = input : f32[4]; a = exp x; b = reshape(shape:[2,2]) a; c = neg b; return c";
        check(fuse, text, text);
    }
}
