//! Many trees of different shapes as few tensors.

use thalweg_tensor::Tensor;

use crate::trees::{Below, Tree};

/// The nodes of some trees by their height, for networks that compute a node from its children: first all leaves, then all
/// nodes whose children are known, and so on. Nodes are numbered in this order.
///
/// A node with one child is that child; one with more than two is made of pairs from the left, each with its label.
///
/// ```
/// use thalweg_data::{Forest, OnError, trees};
/// let text = "(3 (2 It) (4 (2 is) (4 lovely)))\n(1 dull)";
/// let trees = trees::parse("t", text.as_bytes(), OnError::Stop)?.data;
/// let forest = Forest::new(&trees, |word| word.len() as i64, |label| label);
/// assert_eq!(forest.words.to_vec::<i64>(), [2, 2, 6, 4]);
/// let children: Vec<_> = forest.levels.iter().map(|(l, r)| (l.to_vec::<i64>(), r.to_vec::<i64>())).collect();
/// assert_eq!(children, [(vec![1], vec![2]), (vec![0], vec![4])]); // "is lovely", then "It (is lovely)"
/// assert_eq!(forest.targets.to_vec::<i64>(), [2, 2, 4, 1, 4, 3]);
/// assert_eq!(forest.roots.to_vec::<i64>(), [5, 3]);
/// # Ok::<(), thalweg_data::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Forest {
    /// The words of the leaves, i64, (leaves).
    pub words: Tensor,
    /// The left and right children of the nodes of each further level, by number, i64, (nodes of the level) each.
    pub levels: Vec<(Tensor, Tensor)>,
    /// The targets of all nodes, i64, (nodes).
    pub targets: Tensor,
    /// The numbers of the roots, i64, (trees).
    pub roots: Tensor,
}

/// A node by what it is made of.
#[derive(Clone, Copy)]
enum Made {
    Word(i64),
    Pair(usize, usize),
}

struct Node {
    made: Made,
    target: i64,
    /// Its number in the order of the trees.
    id: usize,
}

impl Forest {
    /// Numbers words and labels with these functions.
    pub fn new<'a>(
        trees: impl IntoIterator<Item = &'a Tree>,
        word: impl Fn(&str) -> i64,
        target: impl Fn(i64) -> i64,
    ) -> Self {
        let mut levels: Vec<Vec<Node>> = vec![Vec::new()];
        let (mut heights, mut roots): (Vec<usize>, Vec<usize>) = (Vec::new(), Vec::new());
        let mut add = |made: Made, label: i64| {
            let (id, height) = match made {
                Made::Word(_) => (heights.len(), 0),
                Made::Pair(a, b) => (heights.len(), 1 + heights[a].max(heights[b])),
            };
            levels.resize_with(levels.len().max(height + 1), Vec::new);
            levels[height].push(Node { made, target: target(label), id });
            heights.push(height);
            id
        };
        for tree in trees {
            let mut ids: Vec<usize> = Vec::with_capacity(tree.nodes.len());
            for node in &tree.nodes {
                ids.push(match &node.below {
                    Below::Word(text) => add(Made::Word(word(text)), node.label),
                    Below::Nodes(below) => {
                        let pair = |left, &right: &usize| add(Made::Pair(left, ids[right]), node.label);
                        below[1..].iter().fold(ids[below[0]], pair)
                    }
                });
            }
            roots.extend(ids.last());
        }
        let mut places = vec![0; heights.len()];
        for (place, node) in levels.iter().flatten().enumerate() {
            places[node.id] = place as i64;
        }
        // The left or right child, or the word of a leaf.
        let column = |level: &Vec<Node>, left: bool| {
            let of = |node: &Node| match node.made {
                Made::Word(word) => word,
                Made::Pair(a, b) => places[if left { a } else { b }],
            };
            Tensor::from(level.iter().map(of).collect::<Vec<i64>>())
        };
        Self {
            words: column(&levels[0], true),
            levels: levels[1..].iter().map(|l| (column(l, true), column(l, false))).collect(),
            targets: Tensor::from(levels.iter().flatten().map(|n| n.target).collect::<Vec<i64>>()),
            roots: Tensor::from(roots.into_iter().map(|r| places[r]).collect::<Vec<i64>>()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::OnError;
    use crate::trees::parse;

    /// The slow obvious way: the sum of all words below a node, by recursion.
    fn sum(tree: &Tree, node: usize) -> i64 {
        match &tree.nodes[node].below {
            Below::Word(w) => w.parse().unwrap(),
            Below::Nodes(below) => below.iter().map(|&b| sum(tree, b)).sum(),
        }
    }

    #[test]
    fn every_node_is_computed_from_its_own_children() {
        let text =
            "(1 (2 (3 1) (4 2)) (5 4))\n(6 (7 8) (8 16) (9 (10 32) (11 64)))\n(12 (13 128))\n(14 256)\n";
        let trees = parse("t", text.as_bytes(), OnError::Stop).unwrap().data;
        let forest = Forest::new(&trees, |w| w.parse().unwrap(), |label| label);
        let mut sums = forest.words.to_vec::<i64>();
        for (left, right) in &forest.levels {
            let (left, right) = (left.to_vec::<i64>(), right.to_vec::<i64>());
            let level: Vec<i64> =
                left.iter().zip(&right).map(|(&l, &r)| sums[l as usize] + sums[r as usize]).collect();
            sums.extend(level);
        }
        let roots: Vec<i64> = forest.roots.to_vec::<i64>().into_iter().map(|r| sums[r as usize]).collect();
        let want: Vec<i64> = trees.iter().map(|t| sum(t, t.nodes.len() - 1)).collect();
        assert_eq!(roots, want);
        let targets = forest.targets.to_vec::<i64>();
        assert_eq!((sums.len(), targets.len()), (14, 14));
        let with_sum = |s: i64| targets[sums.iter().position(|&v| v == s).unwrap()];
        assert_eq!((with_sum(3), with_sum(7), with_sum(96), with_sum(256)), (2, 1, 9, 14));
    }
}
