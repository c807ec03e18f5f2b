//! Nodes in topological order.

use std::panic::Location;

use smallvec::{SmallVec, smallvec};
use thalweg_tensor::ops::{Cost, Op};
use thalweg_tensor::{Meta, OpError};

use crate::literal::Literal;

/// The number of a node in its graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeId(pub u32);

impl NodeId {
    /// As a position.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// What a node computes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Kind {
    /// An operand of the function, by position.
    Input(usize),
    /// A parameter's value at the beginning, by position among the graph's parameters.
    Param(usize),
    /// A tensor from around the function, by position among the captured ones.
    Captured(usize),
    /// A constant.
    Literal(Literal),
    /// An op.
    Op(Op),
}

/// One value of the graph.
#[derive(Debug, Clone)]
pub struct Node {
    /// What it computes.
    pub kind: Kind,
    /// From which values.
    pub inputs: SmallVec<[NodeId; 4]>,
    /// Dtype and shape.
    pub meta: Meta,
    /// The user's line; `None` for a node that did not come from a trace.
    pub at: Option<&'static Location<'static>>,
    /// Nodes of different regions are never merged: see `thalweg_tensor::trace::Recorded::region`.
    pub region: u32,
    /// Nodes of one group (not 0) run as one step.
    pub group: u32,
}

/// A function as nodes. Nodes read only nodes before them.
#[derive(Debug, Clone, Default)]
pub struct Graph {
    nodes: Vec<Node>,
    /// Names of the operands, in order.
    pub inputs: Vec<String>,
    /// Names of the parameters, in order.
    pub params: Vec<String>,
    /// How many tensors were captured.
    pub n_captured: usize,
    /// The results with their names.
    pub outputs: Vec<(String, NodeId)>,
    /// Parameters by position, and the values they have at the end.
    pub writes: Vec<(usize, NodeId)>,
    /// Further names of nodes. Passes drop them: what they name may be gone.
    pub labels: Vec<(String, NodeId)>,
}

impl Graph {
    /// All nodes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// A graph of nothing but nodes.
    pub(crate) fn of(nodes: Vec<Node>) -> Graph {
        Graph { nodes, ..Graph::default() }
    }

    /// All nodes, for passes that only annotate.
    pub(crate) fn nodes_mut(&mut self) -> &mut [Node] {
        &mut self.nodes
    }

    /// One node.
    pub fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.index()]
    }

    /// The numbers of all nodes, in order.
    pub fn ids(&self) -> impl DoubleEndedIterator<Item = NodeId> + use<> {
        (0..self.nodes.len() as u32).map(NodeId)
    }

    /// An empty graph with the same operands, parameters and captured tensors.
    pub fn like(&self) -> Graph {
        Graph {
            nodes: Vec::with_capacity(self.nodes.len()),
            inputs: self.inputs.clone(),
            params: self.params.clone(),
            n_captured: self.n_captured,
            outputs: Vec::new(),
            writes: Vec::new(),
            labels: Vec::new(),
        }
    }

    /// Appends a node.
    pub fn push(&mut self, node: Node) -> NodeId {
        self.nodes.push(node);
        NodeId(self.nodes.len() as u32 - 1)
    }

    /// The node of an operand, appended if there is none.
    pub fn input(&mut self, position: usize, meta: &Meta) -> NodeId {
        match self.ids().find(|&id| self.node(id).kind == Kind::Input(position)) {
            Some(id) => id,
            None => self.push(crate::Traced::bare(Kind::Input(position), meta.clone())),
        }
    }

    /// Numbers the operands anew: operand i becomes operand `order[i]`. False, and nothing done, if that is no order of them.
    pub fn reorder_inputs(&mut self, order: &[usize]) -> bool {
        let mut names = vec![None; self.inputs.len()];
        for (&place, name) in order.iter().zip(&self.inputs) {
            match names.get_mut(place) {
                Some(free @ None) => *free = Some(name.clone()),
                _ => return false,
            }
        }
        if order.len() != names.len() {
            return false;
        }
        self.inputs = names.into_iter().flatten().collect();
        for node in &mut self.nodes {
            if let Kind::Input(i) = &mut node.kind {
                *i = order[*i];
            }
        }
        true
    }

    /// Dtype and shape of each operand that has a node.
    pub fn input_metas(&self) -> Vec<Option<&Meta>> {
        let mut metas = vec![None; self.inputs.len()];
        for node in self.nodes() {
            if let Kind::Input(i) = node.kind {
                metas[i] = Some(&node.meta);
            }
        }
        metas
    }

    /// Dtype and shape of each result.
    pub fn output_metas(&self) -> Vec<&Meta> {
        self.outputs.iter().map(|(_, id)| &self.node(*id).meta).collect()
    }

    /// Appends a constant.
    pub fn literal(&mut self, literal: Literal, like: &Node) -> NodeId {
        let meta = literal.meta().clone();
        self.push(Node { kind: Kind::Literal(literal), inputs: smallvec![], meta, ..like.clone() })
    }

    /// Appends an op whose line and region are those of `like`.
    pub fn apply(&mut self, op: impl Into<Op>, inputs: &[NodeId], like: &Node) -> Result<NodeId, OpError> {
        let op = op.into();
        let meta = op.infer(&inputs.iter().map(|&i| &self.node(i).meta).collect::<Vec<_>>())?;
        Ok(self.push(Node { kind: Kind::Op(op), inputs: inputs.into(), meta, ..like.clone() }))
    }

    /// The op of a node, if it is one.
    pub fn op(&self, id: NodeId) -> Option<&Op> {
        match &self.node(id).kind {
            Kind::Op(op) => Some(op),
            _ => None,
        }
    }

    /// Everything that must be there at the end: results, then written values.
    pub fn roots(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.outputs.iter().map(|&(_, id)| id).chain(self.writes.iter().map(|&(_, id)| id))
    }

    /// The nodes whose op does something besides, in the order in which that is to happen.
    pub fn effects(&self) -> impl Iterator<Item = NodeId> + '_ {
        self.ids().filter(|&id| self.op(id).is_some_and(Op::has_effect))
    }

    /// How many nodes read each node; a result or a write counts as one.
    pub fn n_uses(&self) -> Vec<u32> {
        let mut uses = vec![0; self.nodes.len()];
        let read = self.nodes.iter().flat_map(|n| n.inputs.iter().copied()).chain(self.roots());
        read.for_each(|id| uses[id.index()] += 1);
        uses
    }

    /// Work and traffic of one node.
    pub fn cost(&self, id: NodeId) -> Cost {
        let node = self.node(id);
        match &node.kind {
            Kind::Op(op) => {
                let inputs: SmallVec<[&Meta; 4]> = node.inputs.iter().map(|&i| &self.node(i).meta).collect();
                op.cost(&inputs, &node.meta)
            }
            _ => Cost::default(),
        }
    }

    /// Floating-point work of all nodes.
    pub fn flops(&self) -> u64 {
        self.ids().map(|id| self.cost(id).flops).sum()
    }

    /// A new graph with each node replaced by what `f` appends for it: `f` gets the graph under way,
    /// the node with its inputs renamed, and returns the node that stands for it.
    pub fn rewrite(&self, mut f: impl FnMut(&mut Graph, Node) -> NodeId) -> Graph {
        self.rebuild(|out, renamed, id| {
            let mut node = self.node(id).clone();
            node.inputs.iter_mut().for_each(|i| *i = renamed[i.index()]);
            f(out, node)
        })
    }

    /// [`Graph::rewrite`] for rules that look further than a node's inputs: `f` gets the graph under
    /// way, what stands there for each earlier node of this graph, and the number of the node.
    pub fn rebuild(&self, mut f: impl FnMut(&mut Graph, &[NodeId], NodeId) -> NodeId) -> Graph {
        let mut out = self.like();
        let mut renamed: Vec<NodeId> = Vec::with_capacity(self.nodes.len());
        for id in self.ids() {
            let new = f(&mut out, &renamed, id);
            renamed.push(new);
        }
        out.outputs = self.outputs.iter().map(|(name, id)| (name.clone(), renamed[id.index()])).collect();
        out.writes = self.writes.iter().map(|&(p, id)| (p, renamed[id.index()])).collect();
        out
    }

    /// [`Graph::rebuild`] in place, from one node on: those before it stay, the others move to `f` with their inputs renamed.
    /// Graphs that are made to be run once have no time for copies.
    pub(crate) fn rebuild_from(
        &mut self,
        first: NodeId,
        mut f: impl FnMut(&mut Graph, &[NodeId], Node) -> NodeId,
    ) {
        let mut renamed: Vec<NodeId> = self.ids().take(first.index()).collect();
        for mut node in self.nodes.split_off(first.index()) {
            node.inputs.iter_mut().for_each(|i| *i = renamed[i.index()]);
            let new = f(self, &renamed, node);
            renamed.push(new);
        }
        self.rename_roots(&renamed);
    }

    /// Takes out nodes, in place: `f` gets the nodes that stay so far, and one with its inputs renamed; it names the one that
    /// stands for it, or lets it stay.
    pub(crate) fn thin_out(&mut self, mut f: impl FnMut(&[Node], &Node) -> Option<NodeId>) {
        let mut renamed: Vec<NodeId> = Vec::with_capacity(self.nodes.len());
        let mut n_kept = 0;
        for i in 0..self.nodes.len() {
            let (before, node) = self.nodes.split_at_mut(i);
            let node = &mut node[0];
            node.inputs.iter_mut().for_each(|i| *i = renamed[i.index()]);
            if let Some(other) = f(&before[..n_kept], node) {
                renamed.push(other);
                continue;
            }
            renamed.push(NodeId(n_kept as u32));
            self.nodes.swap(n_kept, i);
            n_kept += 1;
        }
        self.nodes.truncate(n_kept);
        self.rename_roots(&renamed);
    }

    fn rename_roots(&mut self, renamed: &[NodeId]) {
        self.labels.clear();
        let roots = self.outputs.iter_mut().map(|(_, id)| id).chain(self.writes.iter_mut().map(|(_, id)| id));
        roots.for_each(|id| *id = renamed[id.index()]);
    }

    /// Appends a copy of a node of `from` with its inputs renamed.
    pub fn copy(&mut self, from: &Graph, renamed: &[NodeId], id: NodeId) -> NodeId {
        let mut node = from.node(id).clone();
        node.inputs.iter_mut().for_each(|i| *i = renamed[i.index()]);
        self.push(node)
    }
}
