//! Sums over many instances, as gradients of shared weights are: Σ aᵢ·bᵢ is one product of all a's and
//! all b's side by side, rows that are added to a table are added at once, and other terms are stacked
//! and summed. A chain of additions would make every instance wait for the one before.

use thalweg_core::Shape;
use thalweg_tensor::OpError;
use thalweg_tensor::ops::{Add, Combine, Concat, IndexCombine, Matmul, Op, Permute, Reshape, Sum};

use super::with_lead;
use crate::graph::{Graph, Kind, Node, NodeId};

/// Shorter sums stay as they are.
const MIN_TERMS: usize = 4;

/// See the module.
pub(super) fn join_sums(graph: &mut Graph, common: &[bool]) -> Result<(), OpError> {
    let mut sums = long_sums(graph, common).into_iter().peekable();
    let Some(&(first, _)) = sums.peek() else { return Ok(()) };
    let mut failure = Ok(());
    graph.rebuild_from(first, |out, renamed, node| {
        if let Some((_, terms)) = sums.next_if(|(root, _)| root.index() == renamed.len()) {
            match terms.build(out, renamed, &node) {
                Ok(sum) => return sum,
                Err(error) => failure = Err(error),
            }
        }
        out.push(node)
    });
    failure
}

/// The sums of many terms, in the order of the nodes.
fn long_sums(graph: &Graph, common: &[bool]) -> Vec<(NodeId, Terms)> {
    let uses = graph.n_uses();
    let is_sum = |id: NodeId| matches!(graph.op(id), Some(Op::Add(_)));
    let mut is_inner = vec![false; graph.nodes().len()];
    for id in graph.ids().filter(|&id| is_sum(id)) {
        for &i in graph.node(id).inputs.iter().filter(|&&i| is_sum(i) && uses[i.index()] == 1) {
            is_inner[i.index()] = true;
        }
    }
    let roots = graph.ids().filter(|&id| is_sum(id) && !is_inner[id.index()]);
    let sums = roots.map(|id| (id, Terms::of(graph, common, &is_inner, &uses, id)));
    sums.filter(|(_, terms)| terms.n() >= MIN_TERMS).collect()
}

/// The terms of a sum by what can be done with them.
#[derive(Default)]
struct Terms {
    /// Products xᵢᵀ·bᵢ, by xᵢ and bᵢ.
    transposed: Vec<(NodeId, NodeId)>,
    /// Products aᵢ·bᵢ.
    products: Vec<(NodeId, NodeId)>,
    /// Rows added to a table of zeros.
    tables: Option<Table>,
    /// Sums over rows, by what is summed.
    rows: Vec<NodeId>,
    others: Vec<NodeId>,
}

/// Rows added to a table: the table, how, and the index and the rows of each term.
type Table = (NodeId, IndexCombine, Vec<(NodeId, NodeId)>);

impl Terms {
    fn of(graph: &Graph, common: &[bool], is_inner: &[bool], uses: &[u32], root: NodeId) -> Self {
        let mut terms = Self::default();
        let mut stack = vec![root];
        while let Some(id) = stack.pop() {
            if id == root || is_inner[id.index()] {
                stack.extend(graph.node(id).inputs.iter().rev());
            } else if uses[id.index()] == 1 && !common[id.index()] {
                terms.sort_in(graph, common, id);
            } else {
                terms.others.push(id);
            }
        }
        terms
    }

    fn sort_in(&mut self, graph: &Graph, common: &[bool], id: NodeId) {
        let node = graph.node(id);
        let of_instance = |i: NodeId| !common[i.index()];
        match (&node.kind, &node.inputs[..]) {
            (Kind::Op(Op::Matmul(_)), &[a, b])
                if node.meta.shape.rank() == 2 && of_instance(a) && of_instance(b) =>
            {
                match graph.op(a) {
                    Some(Op::Permute(p)) if p.axes[..] == [1, 0] => {
                        self.transposed.push((graph.node(a).inputs[0], b));
                    }
                    _ => self.products.push((a, b)),
                }
            }
            (Kind::Op(Op::IndexCombine(op)), &[table, index, rows])
                if op.axis == 0 && op.combine == Combine::Add && is_zero(graph, table) =>
            {
                match &mut self.tables {
                    Some((known, _, list)) if *known == table => list.push((index, rows)),
                    Some(_) => self.others.push(id),
                    none => *none = Some((table, op.clone(), vec![(index, rows)])),
                }
            }
            (Kind::Op(Op::Sum(s)), &[x]) if s.axes[..] == [0] && of_instance(x) => self.rows.push(x),
            _ => self.others.push(id),
        }
    }

    fn n(&self) -> usize {
        let tables = self.tables.as_ref().map_or(0, |t| t.2.len());
        self.transposed.len() + self.products.len() + tables + self.rows.len() + self.others.len()
    }

    fn build(self, out: &mut Graph, renamed: &[NodeId], like: &Node) -> Result<NodeId, OpError> {
        let new = |id: NodeId| renamed[id.index()];
        let joined = |out: &mut Graph, ids: &mut dyn Iterator<Item = NodeId>, axis: usize| {
            let ids: Vec<NodeId> = ids.map(new).collect();
            if let [one] = ids[..] { Ok(one) } else { out.apply(Concat { axis }, &ids, like) }
        };
        let mut parts = Vec::new();
        if !self.transposed.is_empty() {
            let x = joined(out, &mut self.transposed.iter().map(|t| t.0), 0)?;
            let b = joined(out, &mut self.transposed.iter().map(|t| t.1), 0)?;
            let x = out.apply(Permute { axes: [1, 0].into_iter().collect() }, &[x], like)?;
            parts.push(out.apply(Matmul, &[x, b], like)?);
        }
        if !self.products.is_empty() {
            let a = joined(out, &mut self.products.iter().map(|t| t.0), 1)?;
            let b = joined(out, &mut self.products.iter().map(|t| t.1), 0)?;
            parts.push(out.apply(Matmul, &[a, b], like)?);
        }
        if let Some((table, op, list)) = &self.tables {
            let index = joined(out, &mut list.iter().map(|t| t.0), 0)?;
            let rows = joined(out, &mut list.iter().map(|t| t.1), 0)?;
            parts.push(out.apply(op.clone(), &[new(*table), index, rows], like)?);
        }
        if !self.rows.is_empty() {
            let x = joined(out, &mut self.rows.iter().copied(), 0)?;
            parts.push(out.apply(Sum { axes: [0].into_iter().collect() }, &[x], like)?);
        }
        if self.others.len() < MIN_TERMS {
            parts.extend(self.others.iter().map(|&id| new(id)));
        } else {
            parts.push(stacked_sum(out, &mut self.others.iter().map(|&id| new(id)), like)?);
        }
        let first = parts.remove(0);
        parts.into_iter().try_fold(first, |sum, part| out.apply(Add, &[sum, part], like))
    }
}

fn stacked_sum(
    out: &mut Graph,
    ids: &mut dyn Iterator<Item = NodeId>,
    like: &Node,
) -> Result<NodeId, OpError> {
    let shape: Shape = with_lead(1, &like.meta.shape);
    let raised = ids
        .map(|id| out.apply(Reshape { shape: shape.clone() }, &[id], like))
        .collect::<Result<Vec<_>, _>>()?;
    let all = out.apply(Concat { axis: 0 }, &raised, like)?;
    out.apply(Sum { axes: [0].into_iter().collect() }, &[all], like)
}

fn is_zero(graph: &Graph, id: NodeId) -> bool {
    match &graph.node(id).kind {
        Kind::Literal(literal) => literal.uniform() == Some(0.0),
        Kind::Op(Op::Broadcast(_)) => is_zero(graph, graph.node(id).inputs[0]),
        _ => false,
    }
}
