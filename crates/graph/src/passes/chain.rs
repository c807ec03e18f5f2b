//! The cheapest order of a chain of matrix products: dynamic programming over its pieces.

use thalweg_tensor::ops::{Cost, Matmul};

use super::factors::{Factor, factors, is_product, weight};
use crate::graph::{Graph, Node, NodeId};

/// Longer chains are left as they are: the search takes the cube of the length.
const MAX_FACTORS: usize = 128;

/// Chains of products whose intermediate values nobody else reads, in their cheapest order, where
/// that is at least a tenth cheaper.
pub(super) fn chain_order(graph: &Graph) -> Graph {
    let uses = graph.n_uses();
    let mut is_inside = vec![false; graph.nodes().len()];
    let mut better: Vec<Option<Order>> = vec![None; graph.nodes().len()];
    for root in graph.ids().rev() {
        if is_inside[root.index()] || !is_product(graph, root) {
            continue;
        }
        let mut inside = Vec::new();
        let factors = factors(graph, &uses, root, &mut inside);
        inside.iter().for_each(|id| is_inside[id.index()] = true);
        if !(3..=MAX_FACTORS).contains(&factors.len()) {
            continue;
        }
        let products = inside.iter().filter(|&&id| is_product(graph, id));
        let present: u64 = products.map(|&id| weight(graph.cost(id))).sum();
        let order = Order::best(graph, factors);
        if order.weight * 10 <= present * 9 {
            better[root.index()] = Some(order);
        }
    }
    graph.rebuild(|out, renamed, id| match &better[id.index()] {
        Some(order) => order.build(out, renamed, graph.node(id), 0, order.factors.len() - 1),
        None => out.copy(graph, renamed, id),
    })
}

#[derive(Clone)]
struct Order {
    factors: Vec<Factor>,
    /// `split[i][j]`: where the product of factors i..=j is cut last.
    split: Vec<Vec<usize>>,
    weight: u64,
}

impl Order {
    fn best(graph: &Graph, factors: Vec<Factor>) -> Self {
        let n = factors.len();
        let (n_batch, size) = (factors[0].n_batch(graph), graph.node(factors[0].node).meta.dtype.size());
        // Factor i is (sizes[i], sizes[i + 1]).
        let mut sizes: Vec<usize> = factors.iter().map(|f| f.sizes(graph).0).collect();
        sizes.push(factors[n - 1].sizes(graph).1);
        let product = |m: usize, k: usize, n: usize| {
            let flops = 2 * (n_batch * m * k * n) as u64;
            weight(Cost { flops, bytes: (n_batch * size * (m * k + k * n + m * n)) as u64 })
        };
        let mut best = vec![vec![0u64; n]; n];
        let mut split = vec![vec![0; n]; n];
        for length in 2..=n {
            for i in 0..=n - length {
                let j = i + length - 1;
                let cut =
                    |k: usize| best[i][k] + best[k + 1][j] + product(sizes[i], sizes[k + 1], sizes[j + 1]);
                let k = (i..j).min_by_key(|&k| cut(k)).expect("at least two factors");
                (best[i][j], split[i][j]) = (cut(k), k);
            }
        }
        Self { weight: best[0][n - 1], factors, split }
    }

    fn build(&self, out: &mut Graph, renamed: &[NodeId], like: &Node, i: usize, j: usize) -> NodeId {
        if i == j {
            return self.factors[i].read(out, renamed, like).expect("factors are matrices");
        }
        let cut = self.split[i][j];
        let left = self.build(out, renamed, like, i, cut);
        let right = self.build(out, renamed, like, cut + 1, j);
        out.apply(Matmul, &[left, right], like).expect("neighbours in a chain fit")
    }
}

#[cfg(test)]
mod tests {
    use super::chain_order;
    use crate::passes::{check, dce};

    fn swept(graph: &crate::Graph) -> crate::Graph {
        dce(&chain_order(graph))
    }

    #[test]
    fn a_vector_at_the_end_is_multiplied_first() {
        check(
            swept,
            "a = input : f32[50, 60]; b = input : f32[60, 70]; v = input : f32[70, 1]; \
             m = matmul a b; y = matmul m v; return y",
            "a = input : f32[50, 60]; b = input : f32[60, 70]; v = input : f32[70, 1]; \
             m = matmul b v; y = matmul a m; return y",
        );
    }

    #[test]
    fn a_chain_is_seen_through_transpositions() {
        // ((a·b)ᵀ · c)ᵀ is cᵀ · (a·b), and c has one column.
        check(
            swept,
            "a = input : f32[50, 60]; b = input : f32[60, 70]; c = input : f32[50, 1]; \
             m = matmul a b; t = permute(axes:[1,0]) m; y = matmul t c; return y",
            "a = input : f32[50, 60]; b = input : f32[60, 70]; c = input : f32[50, 1]; \
             bt = permute(axes:[1,0]) b; at = permute(axes:[1,0]) a; m = matmul at c; y = matmul bt m; return y",
        );
    }

    #[test]
    fn what_others_read_is_not_taken_apart() {
        let text = "a = input : f32[50, 60]; b = input : f32[60, 70]; v = input : f32[70, 1]; \
                    m = matmul a b; y = matmul m v; return y m";
        check(swept, text, text);
    }

    #[test]
    fn an_order_that_is_best_stays() {
        let text = "a = input : f32[2, 60]; b = input : f32[60, 70]; c = input : f32[70, 80]; \
                    m = matmul a b; y = matmul m c; return y";
        check(swept, text, text);
    }
}
