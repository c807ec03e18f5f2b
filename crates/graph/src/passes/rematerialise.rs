//! Rematerialisation: values that are read again much later are dropped and computed again, so that
//! the graph runs within a memory budget.
//!
//! The moment at which most is alive (in a training step: the end of the forward part) parts the graph
//! in two. What stands before it is cut into segments at places where little passes; what passes a cut
//! is kept. Everything else that the second part reads is computed again there, a segment at a time,
//! from what was kept, just before it is first read. Each node is computed at most twice, by the same
//! op on the same operands, so that results keep their bits. Since kept values are freed as the second
//! part walks back, earlier segments may be longer than later ones, and the last is not dropped at
//! all: n equal layers fit in the memory of about √(2n).
//!
//! Copies belong to a region of their own: merging equal nodes would undo the work.

use crate::graph::{Graph, Kind, NodeId};
use crate::memory::Liveness;

/// Shares of the budget that kept and recomputed values are allowed, tried in this order: the rest is
/// for what comes and goes. When none is small enough, the same shares of what is needed now.
const SHARES: &[f64] = &[1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.12, 0.06];

/// A graph with the same results that needs at most `budget` bytes as `measure` counts them, or as
/// little as can be had. The graph itself, if it fits.
///
/// ```
/// use thalweg_graph::{Graph, passes};
/// let mut text = String::from("v0 = input : f32[1000]\n");
/// (0..16).for_each(|i| text += &format!("v{} = exp v{i}\n", i + 1));
/// text += "d16 = neg v16\n";
/// (0..16).rev().for_each(|i| text += &format!("d{i} = mul d{} v{}\n", i + 1, i + 1));
/// text += "return d0";
/// let graph: Graph = text.parse().unwrap();
/// let small = passes::rematerialise(&graph, graph.peak_bytes() / 2, Graph::peak_bytes);
/// assert!(small.peak_bytes() <= graph.peak_bytes() / 2);
/// ```
pub fn rematerialise(graph: &Graph, budget: usize, measure: impl Fn(&Graph) -> usize) -> Graph {
    let mut best = (measure(graph), graph.clone());
    if best.0 <= budget {
        return best.1;
    }
    let cut = Cut::new(graph);
    let shares = |of: usize| SHARES.iter().map(move |share| (of as f64 * share) as usize);
    for target in shares(budget).chain(shares(best.0).skip(1)) {
        let candidate = cut.recompute(&cut.kept(target));
        let bytes = measure(&candidate);
        if bytes < best.0 {
            best = (bytes, candidate);
        }
        if best.0 <= budget {
            break;
        }
    }
    best.1
}

/// A graph in two parts.
struct Cut<'a> {
    graph: &'a Graph,
    live: Liveness,
    /// The last position of the first part.
    at: usize,
    /// For each node of the first part: the last position in that part that reads its memory.
    last_before: Vec<usize>,
    is_result: Vec<bool>,
}

impl<'a> Cut<'a> {
    fn new(graph: &'a Graph) -> Self {
        let mut live = Liveness::new(graph);
        let mut is_result = vec![false; graph.nodes().len()];
        for root in graph.roots().map(|id| live.root[id.index()].index()) {
            is_result[root] = true;
            // Handed out in memory of its own.
            live.bytes[root] = 0;
        }
        let profile = live.profile();
        let at = (0..profile.len()).max_by_key(|&i| profile[i]).unwrap_or(0);
        let mut last_before: Vec<usize> = (0..profile.len()).collect();
        for (i, node) in graph.nodes().iter().enumerate().take(at + 1) {
            node.inputs.iter().for_each(|x| last_before[live.root[x.index()].index()] = i);
        }
        Self { graph, live, at, last_before, is_result }
    }

    /// Whether the second part reads the memory of a node of the first.
    fn is_saved(&self, i: usize) -> bool {
        i <= self.at && self.live.last_read[i] > self.at
    }

    /// Bytes that pass each position of the first part on their way to later ones of that part.
    fn passing(&self) -> Vec<usize> {
        let mut change = vec![0isize; self.at + 2];
        for i in 0..=self.at {
            let bytes = self.live.bytes[i] as isize;
            change[i] += bytes;
            change[self.last_before[i]] -= bytes;
        }
        let mut sum = 0;
        let passing = |d: &isize| {
            sum += d;
            sum as usize
        };
        change[..=self.at].iter().map(passing).collect()
    }

    /// What is kept if kept values and those of any one segment may take `target` bytes.
    fn kept(&self, target: usize) -> Vec<bool> {
        let passing = self.passing();
        let saved = |i: usize| if self.is_saved(i) { self.live.bytes[i] } else { 0 };
        let mut kept = self.is_result.clone();
        // What they do besides must happen once.
        self.graph.effects().for_each(|id| kept[id.index()] = true);
        let mut n_kept_bytes = 0;
        let mut begin = 0;
        loop {
            // How far this segment may reach.
            let (mut sum, mut end) = (0, begin);
            while end <= self.at && n_kept_bytes + sum + saved(end) <= target {
                sum += saved(end);
                end += 1;
            }
            if end > self.at {
                // The last segment is read at once: nothing of it is dropped.
                (begin..=self.at).filter(|&i| self.is_saved(i)).for_each(|i| kept[i] = true);
                return kept;
            }
            let place = self.narrowest(&passing, begin, end);
            for (i, kept) in kept.iter_mut().enumerate().take(place + 1) {
                if !*kept && self.live.bytes[i] > 0 && self.last_before[i] > place {
                    *kept = true;
                    n_kept_bytes += self.live.bytes[i];
                }
            }
            begin = place + 1;
        }
    }

    /// The last of the narrowest places in `begin..end`; where there is none, the first place that
    /// ends something.
    fn narrowest(&self, passing: &[usize], begin: usize, end: usize) -> usize {
        // A segment without anything to drop would lead nowhere.
        let first =
            (begin..=self.at).find(|&i| self.is_saved(i) && self.live.bytes[i] > 0).unwrap_or(self.at);
        let range = first..end.max(first + 1);
        let least = range.clone().map(|i| passing[i]).min().unwrap_or(0);
        let narrow = |&i: &usize| passing[i] <= least + least / 4;
        range.clone().rev().find(narrow).unwrap_or(range.start)
    }

    /// The graph with everything computed again that the second part reads and that is not kept.
    fn recompute(&self, kept: &[bool]) -> Graph {
        let graph = self.graph;
        let region = 1 + graph.nodes().iter().map(|n| n.region).max().unwrap_or(0);
        let is_there = |id: NodeId| {
            let root = self.live.root[id.index()].index();
            let is_leaf = !matches!(graph.nodes()[root].kind, Kind::Op(_));
            id.index() > self.at || is_leaf || kept[root]
        };
        let mut copies: Vec<Option<NodeId>> = vec![None; graph.nodes().len()];
        graph.rebuild(|out, renamed, id| {
            if id.index() <= self.at {
                return out.copy(graph, renamed, id);
            }
            // Whatever this node needs and is neither there nor already computed again.
            let mut missing: Vec<NodeId> = Vec::new();
            let mut stack = graph.node(id).inputs.to_vec();
            let mut seen = std::collections::HashSet::new();
            while let Some(x) = stack.pop() {
                if !is_there(x) && copies[x.index()].is_none() && seen.insert(x) {
                    missing.push(x);
                    stack.extend_from_slice(&graph.node(x).inputs);
                }
            }
            missing.sort_unstable();
            for x in missing {
                let mut node = graph.node(x).clone();
                node.inputs.iter_mut().for_each(|i| *i = copies[i.index()].unwrap_or(renamed[i.index()]));
                node.region = region;
                copies[x.index()] = Some(out.push(node));
            }
            let mut node = graph.node(id).clone();
            node.inputs.iter_mut().for_each(|i| *i = copies[i.index()].unwrap_or(renamed[i.index()]));
            out.push(node)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Cut, rematerialise};
    use crate::passes::{check, cse, dce};
    use crate::{Graph, verify};
    use thalweg_tensor::{Rng, Tensor};

    /// n layers and something that reads them backwards.
    fn chain(n: usize) -> Graph {
        let mut text = String::from("v0 = input : f32[16]\n");
        (0..n).for_each(|i| text += &format!("v{} = sin v{i}\n", i + 1));
        text += &format!("d{n} = neg v{n}\n");
        (0..n).rev().for_each(|i| text += &format!("d{i} = mul d{} v{}\n", i + 1, i + 1));
        text += "return d0";
        text.parse().unwrap()
    }

    #[test]
    fn a_graph_that_fits_is_left_alone() {
        let graph = chain(8);
        let same = rematerialise(&graph, graph.peak_bytes(), Graph::peak_bytes);
        assert_eq!(graph.to_string(), same.to_string());
    }

    #[test]
    fn the_first_of_six_layers_are_computed_again_just_before_they_are_read() {
        let six = |graph: &Graph| dce(&rematerialise(graph, 5 * 64, Graph::peak_bytes));
        // The last segment, v4 to v6, is read at once and kept.
        check(
            six,
            "x = input : f32[16]; v1 = sin x; v2 = sin v1; v3 = sin v2; v4 = sin v3; v5 = sin v4; v6 = sin v5; \
             d6 = neg v6; d5 = mul d6 v6; d4 = mul d5 v5; d3 = mul d4 v4; d2 = mul d3 v3; d1 = mul d2 v2; \
             d0 = mul d1 v1; return d0",
            "x = input : f32[16]; v1 = sin x; v2 = sin v1; v3 = sin v2; v4 = sin v3; v5 = sin v4; v6 = sin v5; \
             d6 = neg v6; d5 = mul d6 v6; d4 = mul d5 v5; d3 = mul d4 v4; \
             w1 = sin x @1; w2 = sin w1 @1; w3 = sin w2 @1; d2 = mul d3 w3; d1 = mul d2 w2; d0 = mul d1 w1; \
             return d0",
        );
    }

    #[test]
    fn layers_fit_in_about_the_square_root_of_twice_their_number() {
        let graph = chain(64);
        assert_eq!(graph.peak_bytes(), 66 * 64);
        let small = dce(&rematerialise(&graph, 14 * 64, Graph::peak_bytes));
        verify(&small).unwrap();
        assert!(small.peak_bytes() <= 14 * 64, "{} bytes", small.peak_bytes());
        let n_copies = small.nodes().iter().filter(|n| n.region > 0).count();
        assert!((1..64).contains(&n_copies), "each layer is computed again at most once, {n_copies} are");
        let x = [Rng::seed(1).uniform([16], 0.1, 1.0)];
        let (want, got) = (graph.evaluate(&x).unwrap(), small.evaluate(&x).unwrap());
        assert_eq!(want[0].to_vec::<f32>(), got[0].to_vec::<f32>());
    }

    #[test]
    fn merging_equal_nodes_does_not_undo_it() {
        let graph = chain(32);
        let small = dce(&rematerialise(&graph, graph.peak_bytes() / 3, Graph::peak_bytes));
        assert_eq!(cse(&small).to_string(), small.to_string());
    }

    #[test]
    fn results_are_never_computed_again() {
        let mut graph = chain(16);
        let middle = graph.ids().nth(8).unwrap();
        graph.outputs.push(("middle".into(), middle));
        let cut = Cut::new(&graph);
        assert!(cut.kept(0)[middle.index()]);
    }

    #[test]
    fn random_graphs_keep_their_bits_under_any_budget() {
        for seed in 1..=200u64 {
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut draw = |n: usize| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state % n as u64) as usize
            };
            let mut text = String::from("v0 = input : f32[3, 4]\n");
            let n = 5 + draw(40);
            for i in 1..n {
                let (a, b) = (draw(i.min(4)) + i - i.min(4), draw(i));
                let line = match draw(5) {
                    0 => format!("sin v{a}"),
                    1 => format!("add v{a} v{b}"),
                    2 => format!("mul v{a} v{b}"),
                    3 => format!("slice(strides:[(start:2,len:3,step:-1),(start:0,len:4,step:1)]) v{b}"),
                    _ => format!("softmax v{a}"),
                };
                text += &format!("v{i} = {line}\n");
            }
            text += &format!("return v{} v{}", n - 1, draw(n));
            let graph: Graph = text.parse().unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
            let graph = dce(&graph);
            let x: [Tensor; 1] = [Rng::seed(seed).uniform([3, 4], -1.0, 1.0)];
            let want = graph.evaluate(&x).unwrap();
            for budget in [0, graph.peak_bytes() / 3, graph.peak_bytes() * 2 / 3] {
                let small = dce(&rematerialise(&graph, budget, Graph::peak_bytes));
                verify(&small).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{small}"));
                assert!(small.peak_bytes() <= graph.peak_bytes(), "seed {seed}");
                for (w, g) in want.iter().zip(small.evaluate(&x).unwrap()) {
                    let bits =
                        |t: &Tensor| t.to_vec::<f32>().into_iter().map(f32::to_bits).collect::<Vec<_>>();
                    assert_eq!(bits(w), bits(&g), "seed {seed}, budget {budget}");
                }
            }
        }
    }
}
