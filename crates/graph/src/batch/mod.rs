//! Batching by agenda, after DyNet: equal ops on different values become one op on stacked values.
//!
//! Among everything whose operands are there, the ops of one kind (equal op, attributes and operand
//! shapes, equal shared operands such as weights) run together, the kind with the smallest mean depth
//! first, so that what lies deep waits for company. Values stay in the stack that made them; a reader
//! gathers the rows it needs. Sums over many instances become products over all of them first.
//!
//! The order of float operations changes where products are taken together and sums are rearranged.

mod lift;
mod sums;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use thalweg_core::Shape;
use thalweg_tensor::ops::{Concat, IndexSelect, Op, Reshape, Slice, Stride};
use thalweg_tensor::{Meta, OpError, Tensor};

use crate::graph::{Graph, Kind, Node, NodeId};
use crate::literal::Literal;
use crate::passes::{Seen, live};

/// A graph with the same results in which equal ops run as one. See the module.
pub fn batch(mut graph: Graph) -> Result<Graph, OpError> {
    merge_equal(&mut graph);
    let is_common = common(&graph);
    sums::join_sums(&mut graph, &is_common)?;
    Batcher::new(&graph).run()
}

/// Equal nodes become one, dead ones go: the passes of before that copy the graph each.
fn merge_equal(graph: &mut Graph) {
    let mut live = live(graph).into_iter();
    let mut seen = Seen::with_capacity(graph.nodes().len());
    graph.thin_out(|nodes, node| match live.next() {
        Some(true) => seen.earlier(nodes, node),
        // Nobody asks for what stands for a dead node.
        _ => Some(NodeId(u32::MAX)),
    });
}

/// Whether a value is the same for all instances: made of parameters and constants alone.
fn common(graph: &Graph) -> Vec<bool> {
    let mut common: Vec<bool> = Vec::with_capacity(graph.nodes().len());
    for node in graph.nodes() {
        common.push(match node.kind {
            Kind::Param(_) | Kind::Literal(_) => true,
            Kind::Input(_) | Kind::Captured(_) => false,
            Kind::Op(_) => !node.inputs.is_empty() && node.inputs.iter().all(|i| common[i.index()]),
        });
    }
    common
}

/// Where a value of the original graph is in the new one.
#[derive(Clone, Copy)]
enum Place {
    Whole(NodeId),
    /// A row of a stack, which has one axis more.
    Row {
        stack: NodeId,
        index: usize,
    },
}

/// What may run together: the op, and for each operand its kind or, if it is shared, itself.
#[derive(PartialEq, Eq, Hash)]
struct Key<'a> {
    op: &'a Op,
    operands: SmallVec<[(&'a Meta, Option<NodeId>); 3]>,
}

/// Ops of one kind.
#[derive(Default)]
struct Team {
    ready: Vec<NodeId>,
    n_left: usize,
    depth_left: usize,
}

/// The ops that read each node, once for each operand that it is.
struct Readers {
    ends: Vec<u32>,
    all: Vec<NodeId>,
}

impl Readers {
    fn of(graph: &Graph, live: &[bool]) -> Self {
        let reads = || {
            let readers = graph.ids().filter(|id| live[id.index()]);
            readers.flat_map(|id| graph.node(id).inputs.iter().map(move |&i| (i.index(), id)))
        };
        // Where the readers of each node begin; filling them in moves that to where they end.
        let mut ends = vec![0u32; graph.nodes().len() + 1];
        reads().for_each(|(i, _)| ends[i + 1] += 1);
        (1..ends.len()).for_each(|i| ends[i] += ends[i - 1]);
        let mut all = vec![NodeId(0); ends[ends.len() - 1] as usize];
        for (i, reader) in reads() {
            all[ends[i] as usize] = reader;
            ends[i] += 1;
        }
        Self { ends, all }
    }

    fn get(&self, id: NodeId) -> &[NodeId] {
        let begin = if id.index() == 0 { 0 } else { self.ends[id.index() - 1] };
        &self.all[begin as usize..self.ends[id.index()] as usize]
    }
}

struct Batcher<'a> {
    graph: &'a Graph,
    out: Graph,
    places: Vec<Option<Place>>,
    /// Whole values as stacks of one.
    raised: FxHashMap<NodeId, NodeId>,
}

impl<'a> Batcher<'a> {
    fn new(graph: &'a Graph) -> Self {
        let places = vec![None; graph.nodes().len()];
        Self { graph, out: graph.like(), places, raised: FxHashMap::default() }
    }

    fn run(mut self) -> Result<Graph, OpError> {
        let graph = self.graph;
        let n = graph.nodes().len();
        let common = common(graph);
        let mut teams: Vec<Team> = Vec::new();
        let mut team_of = vec![usize::MAX; n];
        let mut known: FxHashMap<Key, usize> = FxHashMap::default();
        let mut depth = vec![0usize; n];
        let live = live(graph);
        let readers = Readers::of(graph, &live);
        let mut missing = vec![0usize; n];
        for id in graph.ids().filter(|id| live[id.index()]) {
            let node = graph.node(id);
            let Kind::Op(op) = &node.kind else {
                self.places[id.index()] = Some(Place::Whole(self.out.push(node.clone())));
                continue;
            };
            depth[id.index()] = node.inputs.iter().map(|i| depth[i.index()] + 1).max().unwrap_or(0);
            let operand = |i: &NodeId| (&graph.node(*i).meta, common[i.index()].then_some(*i));
            let key = Key { op, operands: node.inputs.iter().map(operand).collect() };
            let team = *known.entry(key).or_insert_with(|| {
                teams.push(Team::default());
                teams.len() - 1
            });
            team_of[id.index()] = team;
            teams[team].n_left += 1;
            teams[team].depth_left += depth[id.index()];
            let is_op = |i: &&NodeId| matches!(graph.node(**i).kind, Kind::Op(_));
            missing[id.index()] = node.inputs.iter().filter(is_op).count();
            if missing[id.index()] == 0 {
                teams[team].ready.push(id);
            }
        }
        loop {
            let mean = |t: &Team| t.depth_left as f64 / t.n_left as f64;
            let ready = (0..teams.len()).filter(|&t| !teams[t].ready.is_empty());
            let Some(team) = ready.min_by(|&a, &b| mean(&teams[a]).total_cmp(&mean(&teams[b]))) else {
                break;
            };
            let members = std::mem::take(&mut teams[team].ready);
            teams[team].n_left -= members.len();
            teams[team].depth_left -= members.iter().map(|id| depth[id.index()]).sum::<usize>();
            self.together(&members)?;
            for &reader in members.iter().flat_map(|&id| readers.get(id)) {
                missing[reader.index()] -= 1;
                if missing[reader.index()] == 0 {
                    teams[team_of[reader.index()]].ready.push(reader);
                }
            }
        }
        for (name, id) in &graph.outputs {
            let value = self.whole(*id)?;
            self.out.outputs.push((name.clone(), value));
        }
        for &(param, id) in &graph.writes {
            let value = self.whole(id)?;
            self.out.writes.push((param, value));
        }
        Ok(self.out)
    }

    /// Runs ops of one kind: as one, if they can be.
    fn together(&mut self, members: &[NodeId]) -> Result<(), OpError> {
        let first = self.graph.node(members[0]).clone();
        let Kind::Op(op) = &first.kind else { unreachable!("only ops are in teams") };
        if members.len() > 1
            && let Some(stack) = self.stacked(op, members)?
        {
            for (index, id) in members.iter().enumerate() {
                self.places[id.index()] = Some(Place::Row { stack, index });
            }
            return Ok(());
        }
        for &id in members {
            let node = self.graph.node(id).clone();
            let value = match self.long_concat(op, &node)? {
                Some(value) => value,
                None => {
                    let inputs = node.inputs.iter().map(|&i| self.whole(i)).collect::<Result<Vec<_>, _>>()?;
                    self.out.apply(op.clone(), &inputs, &node)?
                }
            };
            self.places[id.index()] = Some(Place::Whole(value));
        }
        Ok(())
    }

    /// The stack of the results of some ops of one kind; `None` where that has no form.
    fn stacked(&mut self, op: &Op, members: &[NodeId]) -> Result<Option<NodeId>, OpError> {
        let graph = self.graph;
        let like = graph.node(members[0]);
        let operand = |k: usize| members.iter().map(move |&m| graph.node(m).inputs[k]);
        let shared = |k: usize| operand(k).all(|i| i == like.inputs[k]);
        let metas: Vec<&Meta> = like.inputs.iter().map(|&i| &graph.node(i).meta).collect();
        let Some(form) = lift::form(op, &metas, members.len(), &shared) else { return Ok(None) };
        let mut inputs = Vec::new();
        for (k, meta) in metas.iter().enumerate() {
            if form.keeps_shared && shared(k) {
                inputs.push(self.whole(like.inputs[k])?);
                continue;
            }
            let stack = match shared(k) {
                true => {
                    let one = self.whole(like.inputs[k])?;
                    let raised = self.reshaped(one, &with_lead(1, &meta.shape), like)?;
                    let shape = with_lead(members.len(), &meta.shape);
                    self.out.apply(thalweg_tensor::ops::Broadcast { shape }, &[raised], like)?
                }
                false => self.stack(&operand(k).collect::<Vec<_>>(), like)?,
            };
            inputs.push(match &form.operands[k] {
                Some(shape) => self.reshaped(stack, shape, like)?,
                None => stack,
            });
        }
        let result = self.out.apply(form.op, &inputs, like)?;
        self.reshaped(result, &with_lead(members.len(), &like.meta.shape), like).map(Some)
    }

    /// Many values of one shape one after the other: a stack without its first axis.
    fn long_concat(&mut self, op: &Op, node: &Node) -> Result<Option<NodeId>, OpError> {
        let metas = || node.inputs.iter().map(|&i| &self.graph.node(i).meta);
        let is_alike = metas().all(|m| *m == self.graph.node(node.inputs[0]).meta);
        if !matches!(op, Op::Concat(Concat { axis: 0 })) || node.inputs.len() < 2 || !is_alike {
            return Ok(None);
        }
        let stack = self.stack(&node.inputs, node)?;
        self.reshaped(stack, &node.meta.shape, node).map(Some)
    }

    /// Values of one shape along a new first axis.
    fn stack(&mut self, ids: &[NodeId], like: &Node) -> Result<NodeId, OpError> {
        // The rows that are needed of each source, in order of appearance; where each value will be.
        let mut sources: Vec<(NodeId, Vec<usize>)> = Vec::new();
        let mut source_of: FxHashMap<NodeId, usize> = FxHashMap::default();
        let mut at: Vec<(usize, usize)> = Vec::new();
        for &id in ids {
            let (stack, index) = match self.place(id) {
                Place::Row { stack, index } => (stack, index),
                Place::Whole(node) => (self.raise(node, like)?, 0),
            };
            let source = *source_of.entry(stack).or_insert_with(|| {
                sources.push((stack, Vec::new()));
                sources.len() - 1
            });
            at.push((source, sources[source].1.len()));
            sources[source].1.push(index);
        }
        let mut begin = Vec::new();
        let mut pieces = Vec::new();
        let mut n_rows = 0;
        for (stack, rows) in &sources {
            begin.push(n_rows);
            n_rows += rows.len();
            pieces.push(self.rows(*stack, rows, like)?);
        }
        let all = match pieces[..] {
            [one] => one,
            _ => self.out.apply(Concat { axis: 0 }, &pieces, like)?,
        };
        let order: Vec<usize> = at.iter().map(|&(source, row)| begin[source] + row).collect();
        self.rows(all, &order, like)
    }

    /// Some rows of a stack: itself or a part of it where they follow each other.
    fn rows(&mut self, stack: NodeId, rows: &[usize], like: &Node) -> Result<NodeId, OpError> {
        let shape = self.out.node(stack).meta.shape.clone();
        if rows.windows(2).all(|w| w[0] + 1 == w[1]) {
            if rows.len() == shape[0] {
                return Ok(stack);
            }
            let mut strides: SmallVec<[Stride; 4]> = shape.iter().map(|&d| Stride::all(d)).collect();
            strides[0] = Stride { start: rows[0], len: rows.len(), step: 1 };
            return self.out.apply(Slice { strides }, &[stack], like);
        }
        let index: Vec<i64> = rows.iter().map(|&r| r as i64).collect();
        let index = self.out.literal(Literal::new(Tensor::from_slice(&index, index.len())), like);
        self.out.apply(IndexSelect { axis: 0 }, &[stack, index], like)
    }

    fn place(&self, id: NodeId) -> Place {
        self.places[id.index()].expect("operands come first")
    }

    /// A whole value as a stack of one.
    fn raise(&mut self, node: NodeId, like: &Node) -> Result<NodeId, OpError> {
        if let Some(&raised) = self.raised.get(&node) {
            return Ok(raised);
        }
        let shape = with_lead(1, &self.out.node(node).meta.shape);
        let raised = self.reshaped(node, &shape, like)?;
        self.raised.insert(node, raised);
        Ok(raised)
    }

    /// A value by itself, cut out of its stack once.
    fn whole(&mut self, id: NodeId) -> Result<NodeId, OpError> {
        let (stack, index) = match self.place(id) {
            Place::Whole(node) => return Ok(node),
            Place::Row { stack, index } => (stack, index),
        };
        let like = self.graph.node(id);
        let row = self.rows(stack, &[index], like)?;
        let value = self.reshaped(row, &like.meta.shape, like)?;
        self.places[id.index()] = Some(Place::Whole(value));
        Ok(value)
    }

    fn reshaped(&mut self, node: NodeId, shape: &Shape, like: &Node) -> Result<NodeId, OpError> {
        match self.out.node(node).meta.shape == *shape {
            true => Ok(node),
            false => self.out.apply(Reshape { shape: shape.clone() }, &[node], like),
        }
    }
}

/// A shape with one axis more in front.
fn with_lead(n: usize, shape: &Shape) -> Shape {
    std::iter::once(n).chain(shape.iter().copied()).collect()
}

#[cfg(test)]
mod tests {
    use super::batch;
    use crate::{Graph, verify};
    use thalweg_tensor::{Rng, Tensor};

    fn n_ops(graph: &Graph, name: &str) -> usize {
        graph.ids().filter(|&id| graph.op(id).is_some_and(|op| op.name() == name)).count()
    }

    #[test]
    fn one_product_serves_all_instances() {
        let text = "w = param : f32[3, 3]; a = captured : f32[1, 3]; b = captured : f32[1, 3]; \
                    c = captured : f32[1, 3]; p = matmul a w; q = matmul b w; r = matmul c w; \
                    t = tanh p; u = tanh q; v = tanh r; x = matmul u w; y = tanh x; \
                    s = add t y; z = add s v; return z";
        let graph: Graph = text.parse().unwrap();
        let batched = batch(graph.clone()).unwrap();
        verify(&batched).unwrap();
        assert_eq!((n_ops(&graph, "matmul"), n_ops(&batched, "matmul")), (4, 2), "{batched}");
        assert_eq!((n_ops(&graph, "tanh"), n_ops(&batched, "tanh")), (4, 2), "{batched}");
        let mut rng = Rng::seed(1);
        let w = [rng.normal([3, 3], 0.0, 1.0)];
        let captured: Vec<Tensor> = (0..3).map(|_| rng.normal([1, 3], 0.0, 1.0)).collect();
        let value = |g: &Graph| g.values(&[], &w, &captured).unwrap()[g.outputs[0].1.index()].to_vec::<f32>();
        for (a, b) in value(&graph).iter().zip(value(&batched)) {
            assert!((a - b).abs() < 1e-6, "{a} and {b}");
        }
    }

    #[test]
    fn a_sum_of_outer_products_is_one_product() {
        let mut text = String::new();
        (0..6).for_each(|i| text += &format!("x{i} = captured : f32[1, 4]\ny{i} = captured : f32[1, 5]\n"));
        (0..6).for_each(|i| {
            text += &format!("t{i} = permute(axes:[1,0]) x{i}\np{i} = matmul t{i} y{i}\n");
        });
        (1..6).for_each(|i| {
            text += &format!("s{i} = add {} p{i}\n", if i == 1 { "p0".into() } else { format!("s{}", i - 1) })
        });
        text += "return s5";
        let graph: Graph = text.parse().unwrap();
        let batched = batch(graph.clone()).unwrap();
        verify(&batched).unwrap();
        assert_eq!((n_ops(&batched, "matmul"), n_ops(&batched, "add")), (1, 0), "{batched}");
    }

    #[test]
    fn merging_in_place_does_what_the_passes_do() {
        let text = "w = param : f32[3, 3]; c = literal 1.0 : f32[1, 3]; a = captured : f32[1, 3]; p = matmul a w; \
                    dead = tanh p; q = matmul a w; d = literal 1.0 : f32[1, 3]; r = add p c; s = add q d; \
                    again = add q d @1; t = mul r s; u = mul t again; unused = exp u; return u";
        let mut merged: Graph = text.parse().unwrap();
        let want = crate::passes::cse(&crate::passes::dce(&merged));
        super::merge_equal(&mut merged);
        verify(&merged).unwrap();
        assert_eq!(merged.to_string(), want.to_string());
        assert_eq!((n_ops(&merged, "matmul"), n_ops(&merged, "add"), n_ops(&merged, "tanh")), (1, 2, 0));
    }

    #[test]
    fn random_forests_keep_their_values() {
        for seed in 1..=60u64 {
            let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
            let mut draw = |n: usize| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                (state % n as u64) as usize
            };
            let mut text =
                String::from("w = param : f32[4, 4]\nb = param : f32[4]\nc = literal 0.5 : f32[1, 4]\n");
            let n_leaves = 2 + draw(8);
            (0..n_leaves).for_each(|i| text += &format!("v{i} = captured : f32[1, 4]\n"));
            let n = n_leaves + draw(40);
            for i in n_leaves..n {
                let (x, y) = (draw(i), draw(i));
                let line = match draw(11) {
                    0 | 1 => format!("linear v{x} w b"),
                    2 => format!("matmul v{x} w"),
                    3 => format!("add v{x} v{y}"),
                    4 => format!("mul v{x} c"),
                    5 => format!("softmax v{x}"),
                    6 => format!("slice(strides:[(start:0,len:1,step:1),(start:3,len:4,step:-1)]) v{x}"),
                    7 => format!("sub v{x} v{y}"),
                    8 => format!("tanh v{x}"),
                    9 => format!("sum(axes:[0]) v{x}\nv{i} = broadcast(shape:[1,4]) u{i}"),
                    _ => format!(
                        "permute(axes:[1,0]) v{x}\nt{i} = matmul v{y} u{i}\nv{i} = broadcast(shape:[1,4]) t{i}"
                    ),
                };
                let name = if line.contains('\n') { "u" } else { "v" };
                text += &format!("{name}{i} = {line}\n");
            }
            text += &format!("return v{} v{} v{}", n - 1, draw(n), draw(n));
            let graph: Graph = text.parse().unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
            let batched = batch(graph.clone()).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
            verify(&batched).unwrap_or_else(|e| panic!("seed {seed}: {e}\n{batched}"));
            let mut rng = Rng::seed(seed);
            let params = [rng.normal([4, 4], 0.0, 0.5), rng.normal([4], 0.0, 0.5)];
            let captured: Vec<Tensor> = (0..n_leaves).map(|_| rng.normal([1, 4], 0.0, 1.0)).collect();
            let (want, got) = (
                graph.values(&[], &params, &captured).unwrap(),
                batched.values(&[], &params, &captured).unwrap(),
            );
            for ((_, a), (_, b)) in graph.outputs.iter().zip(&batched.outputs) {
                let (a, b) = (want[a.index()].to_vec::<f32>(), got[b.index()].to_vec::<f32>());
                let scale = a.iter().fold(1.0f32, |m, v| m.max(v.abs()));
                for (a, b) in a.iter().zip(&b) {
                    assert!((a - b).abs() <= 1e-4 * scale, "seed {seed}: {b} instead of {a}");
                }
            }
        }
    }
}
