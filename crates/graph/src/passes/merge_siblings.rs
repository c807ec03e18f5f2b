//! Sibling products: products of one left operand with several constant right operands become one
//! product with the right operands side by side (the queries, keys and values of attention, the gates
//! of a cell). The left operand is read once, and one product is one launch. Results are slices of the merged result.
//!
//! That pays for a single row (a word that is generated, a stream through a cell): its slices are as dense as results of
//! their own. Of more rows they are strided, so that only elementwise readers take them as they are, and the launches that
//! are saved count only beside little work: see [`Gate`].
//!
//! Captured tensors and literals never change, so the planner joins them once. Parameters are laid side by side in memory
//! when the plan is bound, where the joined one is a stack of their rows; each is still updated in place by itself. A
//! parameter has one place, so it has neighbours in one family only.

use std::collections::HashMap;

use smallvec::SmallVec;
use thalweg_core::Buffer;
use thalweg_tensor::OpError;
use thalweg_tensor::ops::{Concat, Linear, Matmul, Op, Slice, Stride};

use super::factors::transpose;
use crate::graph::{Graph, Kind, Node, NodeId};

/// Which products gain by being merged. Measured on two cores of a Zen 4, widths from 16 to 768: three products of one row take 1.0 to
/// 1.6 times less time as one; of 2 to 8 rows with elementwise readers 1.0 to 1.2 times within these bounds. Of more rows, or
/// where the slices are results and have to be copied, it was mostly 0.8 to 1.0: apart, small products run beside each other on
/// both cores. Not kept out: four of one row and 128 × 128 whose slices are results, 0.83 to 0.99.
struct Gate {
    /// Read by something that wants dense rows.
    is_read_densely: Vec<bool>,
}

impl Gate {
    const MAX_ROWS: usize = 8;
    const MAX_FLOPS: u64 = 1 << 15;

    fn of(graph: &Graph) -> Self {
        let mut is_read_densely = vec![false; graph.nodes().len()];
        let readers =
            graph.nodes().iter().filter(|n| matches!(&n.kind, Kind::Op(op) if !op.is_elementwise()));
        let read = readers.flat_map(|n| n.inputs.iter().copied()).chain(graph.roots());
        read.for_each(|id| is_read_densely[id.index()] = true);
        Self { is_read_densely }
    }

    fn lets_through(&self, graph: &Graph, id: NodeId) -> bool {
        match graph.node(id).meta.shape[..] {
            [1, _] => true,
            [rows, _] => {
                let is_small = rows <= Self::MAX_ROWS && graph.cost(id).flops <= Self::MAX_FLOPS;
                is_small && !self.is_read_densely[id.index()]
            }
            _ => false,
        }
    }
}

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

/// What the right operands are.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Weights {
    Constants,
    Params,
}

/// What siblings share: the left operand, the region, what the right operands are and how they are read.
type Family = (NodeId, u32, Weights, Reading);

struct Sibling {
    id: NodeId,
    weight: NodeId,
    bias: Option<NodeId>,
}

/// See the module.
pub fn merge_siblings(graph: &Graph) -> Graph {
    let mut families: HashMap<Family, Vec<Sibling>> = HashMap::new();
    let gate = Gate::of(graph);
    for id in graph.ids() {
        if let Some((x, weights, reading, sibling)) = sibling(graph, id)
            && gate.lets_through(graph, id)
        {
            families.entry((x, graph.node(id).region, weights, reading)).or_default().push(sibling);
        }
    }
    families.retain(|_, family| family.len() > 1);
    part_neighbours(&mut families);
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
        if let Some(((x, _, _, reading), family)) = first.get(&id) {
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

/// Keeps of the families that share a parameter only those that have the same ones in the same order as the first.
fn part_neighbours(families: &mut HashMap<Family, Vec<Sibling>>) {
    let mut first: Vec<(Family, NodeId)> =
        families.iter().map(|(key, family)| (*key, family[0].id)).collect();
    first.retain(|(key, _)| key.2 == Weights::Params);
    first.sort_by_key(|&(_, id)| id);
    let mut neighbours: HashMap<NodeId, Vec<NodeId>> = HashMap::new();
    for (key, _) in first {
        let lists: [Vec<NodeId>; 2] = [
            families[&key].iter().map(|s| s.weight).collect(),
            families[&key].iter().filter_map(|s| s.bias).collect(),
        ];
        let agrees = |list: &Vec<NodeId>| {
            let distinct = list.iter().enumerate().all(|(i, id)| !list[..i].contains(id));
            distinct && list.iter().all(|id| neighbours.get(id).is_none_or(|known| known == list))
        };
        match lists.iter().all(agrees) {
            true => lists.iter().for_each(|list| {
                neighbours.extend(list.iter().map(|&id| (id, list.clone())));
            }),
            false => drop(families.remove(&key)),
        }
    }
}

/// What a right operand is, if it can be merged.
fn weights(graph: &Graph, id: NodeId) -> Option<Weights> {
    let node = graph.node(id);
    match node.kind {
        Kind::Captured(_) | Kind::Literal(_) => Some(Weights::Constants),
        Kind::Param(_) if Buffer::can_have_neighbour(node.meta.dtype, node.meta.numel()) => {
            Some(Weights::Params)
        }
        _ => None,
    }
}

/// A product that could be merged: its left operand, and the rest.
fn sibling(graph: &Graph, id: NodeId) -> Option<(NodeId, Weights, Reading, Sibling)> {
    let node = graph.node(id);
    if node.meta.numel() == 0 {
        return None;
    }
    match (graph.op(id)?, &node.inputs[..]) {
        (Op::Linear(_), &[x, weight, bias]) => {
            let kind = weights(graph, weight).filter(|kind| weights(graph, bias) == Some(*kind))?;
            Some((x, kind, Reading::Linear, Sibling { id, weight, bias: Some(bias) }))
        }
        (Op::Matmul(_), &[x, weight]) if node.meta.shape.rank() == 2 => match graph.op(weight) {
            Some(Op::Permute(p)) if p.axes[..] == [1, 0] => {
                let weight = graph.node(weight).inputs[0];
                let kind = weights(graph, weight)?;
                Some((x, kind, Reading::Transposed, Sibling { id, weight, bias: None }))
            }
            // Columns of parameters cannot lie side by side.
            _ => {
                let kind = weights(graph, weight).filter(|&kind| kind == Weights::Constants)?;
                Some((x, kind, Reading::Plain, Sibling { id, weight, bias: None }))
            }
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
            "x = input : f32[1, 3]; a = captured : f32[2, 3]; ab = captured : f32[2]; \
             p = linear x a ab; b = captured : f32[5, 3]; bb = captured : f32[5]; q = linear x b bb; return p q",
            "x = input : f32[1, 3]; a = captured : f32[2, 3]; ab = captured : f32[2]; \
             b = captured : f32[5, 3]; bb = captured : f32[5]; w = concat(axis:0) a b; c = concat(axis:0) ab bb; \
             y = linear x w c; p = slice(strides:[(start:0,len:1,step:1),(start:0,len:2,step:1)]) y; \
             q = slice(strides:[(start:0,len:1,step:1),(start:2,len:5,step:1)]) y; return p q",
        );
    }

    #[test]
    fn rows_of_parameters_become_one_where_they_fill_cache_lines() {
        check(
            |g| dce(&merge_siblings(g)),
            "x = input : f32[4, 16]; a = param : f32[2, 16]; at = permute(axes:[1,0]) a; p = matmul x at; \
             b = param : f32[5, 16]; bt = permute(axes:[1,0]) b; q = matmul x bt; s = tanh p; t = exp q; return s t",
            "x = input : f32[4, 16]; a = param : f32[2, 16]; b = param : f32[5, 16]; w = concat(axis:0) a b; \
             wt = permute(axes:[1,0]) w; y = matmul x wt; \
             p = slice(strides:[(start:0,len:4,step:1),(start:0,len:2,step:1)]) y; \
             q = slice(strides:[(start:0,len:4,step:1),(start:2,len:5,step:1)]) y; s = tanh p; t = exp q; return s t",
        );
    }

    #[test]
    fn a_parameter_has_neighbours_in_one_family_only() {
        let text = "x = input : f32[1, 16]; z = input : f32[1, 16]; a = param : f32[2, 16]; \
                    at = permute(axes:[1,0]) a; b = param : f32[2, 16]; bt = permute(axes:[1,0]) b; \
                    c = param : f32[2, 16]; ct = permute(axes:[1,0]) c; p = matmul x at; q = matmul x bt; \
                    r = matmul z bt; s = matmul z ct; return p q r s";
        let merged = dce(&merge_siblings(&text.parse::<Graph>().unwrap()));
        let count =
            |name| merged.ids().filter(|&id| merged.op(id).is_some_and(|op| op.name() == name)).count();
        assert_eq!((count("matmul"), count("concat")), (3, 1));
    }

    #[test]
    fn columns_and_odd_rows_of_parameters_are_left_alone() {
        for text in [
            "x = input : f32[1, 16]; a = param : f32[16, 16]; p = matmul x a; b = param : f32[16, 16]; \
             q = matmul x b; return p q",
            "x = input : f32[1, 3]; a = param : f32[2, 3]; at = permute(axes:[1,0]) a; p = matmul x at; \
             b = param : f32[2, 3]; bt = permute(axes:[1,0]) b; q = matmul x bt; return p q",
        ] {
            check(merge_siblings, text, text);
        }
    }

    #[test]
    fn rows_that_are_read_densely_many_rows_and_large_products_are_left_apart() {
        let products = |rows: usize, width: usize, end: &str| {
            format!(
                "x = input : f32[{rows}, {width}]; a = captured : f32[{width}, {width}]; b = captured : f32[{width}, {width}]; \
                 p = matmul x a; q = matmul x b; {end}"
            )
        };
        let elementwise = "s = tanh p; t = exp q; return s t";
        for text in [
            products(4, 16, "return p q"),
            products(4, 16, "s = sum(axes:[1]) p; t = softmax q; return s t"),
            products(9, 16, elementwise),
            products(8, 64, elementwise),
        ] {
            check(merge_siblings, &text, &text);
        }
        for (rows, width, end) in [(1, 64, "return p q"), (1, 512, elementwise), (4, 64, elementwise)] {
            let merged = dce(&merge_siblings(&products(rows, width, end).parse::<Graph>().unwrap()));
            let is_product = |&id: &crate::NodeId| merged.op(id).is_some_and(|op| op.name() == "matmul");
            assert_eq!(merged.ids().filter(is_product).count(), 1, "{rows} rows of {width}");
        }
    }

    #[test]
    fn all_readings_keep_their_values() {
        let text = "x = input : f32[1, 3]; a = captured : f32[3, 2]; p = matmul x a; b = captured : f32[3, 5]; \
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
        let x = [rng.normal([1, 3], 0.0, 1.0)];
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
