//! Matrix products seen as lists of factors, each read as it is or transposed.

use thalweg_core::DType;
use thalweg_tensor::OpError;
use thalweg_tensor::ops::{Cost, Matmul, Op, Permute};

use crate::graph::{Graph, Kind, Node, NodeId};

/// A matrix, or a batch of matrices, in a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Factor {
    pub node: NodeId,
    pub transposed: bool,
}

impl Factor {
    /// A node without the transpositions around it.
    pub fn of(graph: &Graph, node: NodeId) -> Self {
        let mut factor = Self { node, transposed: false };
        while is_transposition(graph, factor.node) {
            factor = Self { node: graph.node(factor.node).inputs[0], transposed: !factor.transposed };
        }
        factor
    }

    /// Rows and columns as it is read.
    pub fn sizes(self, graph: &Graph) -> (usize, usize) {
        let shape = &graph.node(self.node).meta.shape;
        let (rows, cols) = (shape[shape.rank() - 2], shape[shape.rank() - 1]);
        if self.transposed { (cols, rows) } else { (rows, cols) }
    }

    /// How many matrices it is.
    pub fn n_batch(self, graph: &Graph) -> usize {
        let shape = &graph.node(self.node).meta.shape;
        shape[..shape.rank() - 2].iter().product()
    }

    /// Appends what reads it: nothing, or a transposition.
    pub fn read(self, out: &mut Graph, renamed: &[NodeId], like: &Node) -> Result<NodeId, OpError> {
        let node = renamed[self.node.index()];
        if self.transposed { transpose(out, node, like) } else { Ok(node) }
    }
}

/// Appends the transposition of the last two axes.
pub(super) fn transpose(out: &mut Graph, node: NodeId, like: &Node) -> Result<NodeId, OpError> {
    let rank = out.node(node).meta.shape.rank();
    out.apply(Permute { axes: (0..rank - 2).chain([rank - 1, rank - 2]).collect() }, &[node], like)
}

/// The factors of a node that is a product: those of products that only it reads are taken apart
/// too. `inside` gets every product and transposition that this would replace.
pub(super) fn factors(graph: &Graph, uses: &[u32], root: NodeId, inside: &mut Vec<NodeId>) -> Vec<Factor> {
    let region = graph.node(root).region;
    let mut list = Vec::new();
    // To be taken apart, leftmost on top; the root is, whoever reads it.
    let mut stack = vec![(root, false)];
    while let Some((id, transposed)) = stack.pop() {
        let node = graph.node(id);
        let own = id == root || (uses[id.index()] == 1 && node.region == region);
        if own && is_product(graph, id) {
            let (a, b) = (node.inputs[0], node.inputs[1]);
            let (first, second) = if transposed { (b, a) } else { (a, b) };
            stack.extend([(second, transposed), (first, transposed)]);
            inside.push(id);
        } else if own && is_transposition(graph, id) {
            stack.push((node.inputs[0], !transposed));
            inside.push(id);
        } else {
            let factor = Factor::of(graph, id);
            list.push(Factor { transposed: factor.transposed != transposed, ..factor });
        }
    }
    list
}

/// A product whose order may be changed: half precision would round what lies between differently.
pub(super) fn is_product(graph: &Graph, id: NodeId) -> bool {
    let node = graph.node(id);
    matches!(node.kind, Kind::Op(Op::Matmul(Matmul))) && matches!(node.meta.dtype, DType::F32 | DType::F64)
}

fn is_transposition(graph: &Graph, id: NodeId) -> bool {
    let Kind::Op(Op::Permute(p)) = &graph.node(id).kind else { return false };
    let rank = p.axes.len();
    rank >= 2 && p.axes.iter().copied().eq((0..rank - 2).chain([rank - 1, rank - 2]))
}

/// What a computation weighs: on the machines we know, moving a byte from memory takes as long as
/// some four operations.
pub(super) fn weight(cost: Cost) -> u64 {
    cost.flops + 4 * cost.bytes
}
