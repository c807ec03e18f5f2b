//! How much memory the values of a graph take when its nodes run one after the other.

use thalweg_core::Layout;

use crate::graph::{Graph, Kind, NodeId};

/// Which values take memory, and for how long. Nodes run in the order in which they stand.
pub(crate) struct Liveness {
    /// The node whose memory a node lies in: itself, unless it is a view.
    pub root: Vec<NodeId>,
    /// Bytes of each node; 0 for views and for leaves, whose memory is not the graph's.
    pub bytes: Vec<usize>,
    /// The position of the last node that reads the memory; one past the end for results.
    pub last_read: Vec<usize>,
}

impl Liveness {
    pub fn new(graph: &Graph) -> Self {
        let n = graph.nodes().len();
        let mut live = Self { root: graph.ids().collect(), bytes: vec![0; n], last_read: (0..n).collect() };
        let mut layouts: Vec<Layout> = Vec::with_capacity(n);
        for (i, node) in graph.nodes().iter().enumerate() {
            let mut layout = Layout::contiguous(node.meta.shape.clone());
            if let Kind::Op(op) = &node.kind {
                let view = match node.inputs[..] {
                    [x] => op.view(&layouts[x.index()], &node.meta.shape).map(|layout| (x, layout)),
                    _ => None,
                };
                match view {
                    Some((x, view)) => {
                        live.root[i] = live.root[x.index()];
                        layout = view;
                    }
                    None => live.bytes[i] = node.meta.bytes(),
                }
            }
            layouts.push(layout);
            node.inputs.iter().for_each(|x| live.last_read[live.root[x.index()].index()] = i);
        }
        graph.roots().for_each(|id| live.last_read[live.root[id.index()].index()] = n);
        live
    }

    /// Bytes alive while each node runs.
    pub fn profile(&self) -> Vec<usize> {
        let n = self.bytes.len();
        let (mut born, mut dies) = (vec![0; n + 2], vec![0; n + 2]);
        for (i, &bytes) in self.bytes.iter().enumerate() {
            born[i] += bytes;
            dies[self.last_read[i] + 1] += bytes;
        }
        let mut alive = 0;
        let at = |i: usize| {
            alive = alive + born[i] - dies[i];
            alive
        };
        (0..n).map(at).collect()
    }
}

impl Graph {
    /// The most memory that values take at once when nodes run in order and nothing is fused.
    pub fn peak_bytes(&self) -> usize {
        Liveness::new(self).profile().into_iter().max().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use crate::Graph;

    #[test]
    fn views_and_leaves_take_nothing_and_values_die_with_their_last_reader() {
        let peak = |text: &str| text.parse::<Graph>().expect("a graph").peak_bytes();
        assert_eq!(peak("x = input : f32[4]; return x"), 0);
        // Two values of 16 bytes at a time.
        assert_eq!(peak("x = input : f32[4]; a = exp x; b = neg a; c = exp b; return c"), 32);
        // The transposition keeps `a` alive.
        assert_eq!(
            peak(
                "x = input : f32[2, 2]; a = exp x; t = permute(axes:[1,0]) a; b = neg x; c = add b t; return c"
            ),
            48
        );
    }
}
