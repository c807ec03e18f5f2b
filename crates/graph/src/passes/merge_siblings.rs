//! Sibling products: products of one left operand with several constant right operands become one
//! product with the right operands side by side (the queries, keys and values of attention, the gates
//! of a cell). The left operand is read and packed once, and one large product keeps the cores busier
//! than several small ones. Results are slices of the merged result.
//!
//! Only captured tensors and literals are merged: they never change, so the planner joins them once.
//! Parameters are left alone. Joining them in every run would cost more than it saves; laying them side
//! by side for good would make it free, but a step that updates one of them in place must then own the
//! memory of all, which `Param::hold_mut` cannot express yet. Products above [`MAX_FLOPS`] gain nothing
//! and would only make their readers read strided memory.

use std::collections::HashMap;

use smallvec::SmallVec;
use thalweg_tensor::OpError;
use thalweg_tensor::ops::{Concat, Linear, Matmul, Op, Slice, Stride};

use super::factors::transpose;
use crate::graph::{Graph, Kind, Node, NodeId};

/// Larger products are efficient by themselves.
const MAX_FLOPS: u64 = 64_000_000;

/// How a product reads its right operand.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Reading {
    /// x · w.
    Plain,
    /// x · wᵀ.
    Transposed,
    /// x · wᵀ + b.
    Linear,
}

/// What siblings share: the left operand, the region, and how they read the right operand.
type Family = (NodeId, u32, Reading);

struct Sibling {
    id: NodeId,
    weight: NodeId,
    bias: Option<NodeId>,
}

/// See the module.
pub fn merge_siblings(graph: &Graph) -> Graph {
    let mut families: HashMap<Family, Vec<Sibling>> = HashMap::new();
    for id in graph.ids() {
        if let Some((x, reading, sibling)) = sibling(graph, id) {
            families.entry((x, graph.node(id).region, reading)).or_default().push(sibling);
        }
    }
    families.retain(|_, family| family.len() > 1);
    if families.is_empty() {
        return graph.clone();
    }
    let first: HashMap<NodeId, (&Family, &Vec<Sibling>)> =
        families.iter().map(|(key, family)| (family[0].id, (key, family))).collect();
    // Leaves come first, so that those of all siblings are there for the first.
    let mut out = graph.like();
    let mut renamed: Vec<Option<NodeId>> = vec![None; graph.nodes().len()];
    for id in graph.ids().filter(|&id| graph.op(id).is_none()) {
        renamed[id.index()] = Some(out.push(graph.node(id).clone()));
    }
    for id in graph.ids().filter(|&id| graph.op(id).is_some()) {
        if let Some(((x, _, reading), family)) = first.get(&id) {
            let x = renamed[x.index()].expect("an operand comes before its readers");
            let pieces = merged(graph, &mut out, &renamed, x, *reading, family);
            let pieces = pieces.expect("the shapes are those of the siblings");
            family.iter().zip(pieces).for_each(|(s, piece)| renamed[s.id.index()] = Some(piece));
        }
        if renamed[id.index()].is_none() {
            let mut node = graph.node(id).clone();
            node.inputs.iter_mut().for_each(|i| *i = renamed[i.index()].expect("operands come first"));
            renamed[id.index()] = Some(out.push(node));
        }
    }
    let new = |id: &NodeId| renamed[id.index()].expect("every node has been placed");
    out.outputs = graph.outputs.iter().map(|(name, id)| (name.clone(), new(id))).collect();
    out.writes = graph.writes.iter().map(|(p, id)| (*p, new(id))).collect();
    out
}

fn is_constant(graph: &Graph, id: NodeId) -> bool {
    matches!(graph.node(id).kind, Kind::Captured(_) | Kind::Literal(_))
}

/// A product that could be merged: its left operand, and the rest.
fn sibling(graph: &Graph, id: NodeId) -> Option<(NodeId, Reading, Sibling)> {
    let node = graph.node(id);
    if graph.cost(id).flops > MAX_FLOPS || node.meta.numel() == 0 {
        return None;
    }
    match (graph.op(id)?, &node.inputs[..]) {
        (Op::Linear(_), &[x, weight, bias]) if is_constant(graph, weight) && is_constant(graph, bias) => {
            Some((x, Reading::Linear, Sibling { id, weight, bias: Some(bias) }))
        }
        (Op::Matmul(_), &[x, weight]) if node.meta.shape.rank() == 2 => match graph.op(weight) {
            Some(Op::Permute(p))
                if p.axes[..] == [1, 0] && is_constant(graph, graph.node(weight).inputs[0]) =>
            {
                let weight = graph.node(weight).inputs[0];
                Some((x, Reading::Transposed, Sibling { id, weight, bias: None }))
            }
            _ if is_constant(graph, weight) => Some((x, Reading::Plain, Sibling { id, weight, bias: None })),
            _ => None,
        },
        _ => None,
    }
}

/// Appends the product of a family; the slice of each sibling.
fn merged(
    graph: &Graph,
    out: &mut Graph,
    renamed: &[Option<NodeId>],
    x: NodeId,
    reading: Reading,
    family: &[Sibling],
) -> Result<Vec<NodeId>, OpError> {
    let like: &Node = graph.node(family[0].id);
    let leaf = |id: NodeId| renamed[id.index()].expect("leaves were placed first");
    let weights: Vec<NodeId> = family.iter().map(|s| leaf(s.weight)).collect();
    let axis = usize::from(reading == Reading::Plain);
    let weight = out.apply(Concat { axis }, &weights, like)?;
    let product = match reading {
        Reading::Plain => out.apply(Matmul, &[x, weight], like)?,
        Reading::Transposed => {
            let weight = transpose(out, weight, like)?;
            out.apply(Matmul, &[x, weight], like)?
        }
        Reading::Linear => {
            let biases: Vec<NodeId> = family.iter().filter_map(|s| s.bias).map(leaf).collect();
            let bias = out.apply(Concat { axis: 0 }, &biases, like)?;
            out.apply(Linear, &[x, weight, bias], like)?
        }
    };
    let mut start = 0;
    let mut pieces = Vec::new();
    for sibling in family {
        let node = graph.node(sibling.id);
        let mut strides: SmallVec<[Stride; 4]> = node.meta.shape.iter().map(|&d| Stride::all(d)).collect();
        strides[1].start = start;
        start += strides[1].len;
        pieces.push(out.apply(Slice { strides }, &[product], node)?);
    }
    Ok(pieces)
}

#[cfg(test)]
mod tests {
    use super::merge_siblings;
    use crate::passes::{check, dce};
    use crate::{Graph, verify};
    use thalweg_tensor::{Rng, Tensor};

    #[test]
    fn products_of_one_operand_with_constants_become_one() {
        check(
            |g| dce(&merge_siblings(g)),
            "x = input : f32[4, 3]; a = captured : f32[2, 3]; ab = captured : f32[2]; \
             p = linear x a ab; b = captured : f32[5, 3]; bb = captured : f32[5]; q = linear x b bb; return p q",
            "x = input : f32[4, 3]; a = captured : f32[2, 3]; ab = captured : f32[2]; \
             b = captured : f32[5, 3]; bb = captured : f32[5]; w = concat(axis:0) a b; c = concat(axis:0) ab bb; \
             y = linear x w c; p = slice(strides:[(start:0,len:4,step:1),(start:0,len:2,step:1)]) y; \
             q = slice(strides:[(start:0,len:4,step:1),(start:2,len:5,step:1)]) y; return p q",
        );
    }

    #[test]
    fn parameters_and_large_products_are_left_alone() {
        for text in [
            "x = input : f32[4, 3]; a = param : f32[3, 2]; p = matmul x a; b = param : f32[3, 2]; \
             q = matmul x b; return p q",
            "x = input : f32[400, 400]; a = captured : f32[400, 400]; p = matmul x a; \
             b = captured : f32[400, 400]; q = matmul x b; return p q",
        ] {
            check(merge_siblings, text, text);
        }
    }

    #[test]
    fn all_readings_keep_their_values() {
        let text = "x = input : f32[4, 3]; a = captured : f32[3, 2]; p = matmul x a; b = captured : f32[3, 5]; \
                    q = matmul x b; c = captured : f32[2, 3]; ct = permute(axes:[1,0]) c; r = matmul x ct; \
                    d = captured : f32[7, 3]; dt = permute(axes:[1,0]) d; s = matmul x dt; return p q r s";
        let graph: Graph = text.parse().unwrap();
        let merged = dce(&merge_siblings(&graph));
        verify(&merged).unwrap();
        assert_eq!(
            merged.ids().filter(|&id| merged.op(id).is_some_and(|op| op.name() == "matmul")).count(),
            2
        );
        let mut rng = Rng::seed(7);
        let x = [rng.normal([4, 3], 0.0, 1.0)];
        let captured: Vec<Tensor> =
            [[3, 2], [3, 5], [2, 3], [7, 3]].iter().map(|s| rng.normal(s, 0.0, 1.0)).collect();
        let values = |g: &Graph| {
            let values = g.values(&x, &[], &captured).unwrap();
            g.outputs.iter().flat_map(|(_, id)| values[id.index()].to_vec::<f32>()).collect::<Vec<_>>()
        };
        for (a, b) in values(&graph).iter().zip(values(&merged)) {
            assert!((a - b).abs() < 1e-5, "{a} and {b}");
        }
    }
}
