//! A plan: a graph as a flat list of steps, with a place in memory for every value.
//!
//! Views cost no step. A group runs as one tile program. What nobody outside a group reads is never
//! stored. A result is written where it will be handed out, the new value of a parameter over the old
//! one where nothing reads the old one later; everything else lies in one arena.

use std::collections::HashMap;
use std::ops::Range;
use std::panic::Location;

use smallvec::{SmallVec, smallvec};
use thalweg_core::{Buffer, DType, Layout, Shape};
use thalweg_graph::{Graph, Kind, NodeId};
use thalweg_tensor::ops::{Concat, Cost, Op, Reshape};
use thalweg_tensor::{Meta, Tensor, apply};

use crate::concurrent;
use crate::order;
use crate::program::Program;

/// Operands of groups joined into one step: their addresses are gathered on the stack.
pub(crate) const MAX_OPERANDS: usize = 192;

/// What planning does beyond what it must: where and when values are computed changes, the values do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stage {
    Epilogues,
    Planes,
    InPlace,
    Arena,
    Join,
    Parallel,
}

impl Stage {
    pub fn name(self) -> &'static str {
        STAGES[self as usize]
    }
}

/// The stages of planning that can be switched off by name, as passes can: what reads a product runs on its pieces
/// (`epilogues`), a pooling takes the planes of a convolution from a cache (`planes`), values are written over old ones that nothing reads later (`in_place`), those that never meet share memory
/// (`arena`), neighbouring groups are one step (`join`), independent steps run at the same time (`parallel`).
pub const STAGES: &[&str] = &["epilogues", "planes", "in_place", "arena", "join", "parallel"];

/// Where a value's memory comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Home {
    Input(usize),
    Param(usize),
    /// Several parameters that lie side by side.
    Joined(usize),
    Captured(usize),
    Literal(usize),
    Output(usize),
    /// Bytes from the beginning of the arena.
    Arena(usize),
    /// Nowhere as a whole: its planes pass through scratch memory during one step.
    Passing,
}

/// Memory for the elements of one value.
#[derive(Debug, Clone)]
pub(crate) struct Storage {
    pub home: Home,
    pub dtype: DType,
    pub len: usize,
}

/// A value: some memory through a layout.
#[derive(Debug, Clone)]
pub(crate) struct Ref {
    pub storage: usize,
    pub layout: Layout,
}

/// What a step does.
#[derive(Clone)]
pub(crate) enum Action {
    /// One op, by its fast kernel or its reference.
    Op(Op),
    /// One op over the memory of its first operand.
    Overwrite(Op),
    /// Fused groups that do not touch each other's memory: the update of all parameters is one step.
    /// Their operands and results stand one after the other.
    Tiles(Vec<Program>),
    /// A product, and a fused group that continues each piece of its result while it is in a cache.
    Then(Box<Then>),
}

/// A product with its epilogue. Its operands stand before those of the program; the results are those of the program
/// and, unless one of them takes its place, that of the product; or that of the pooling alone.
#[derive(Clone)]
pub(crate) struct Then {
    pub op: Op,
    pub n_operands: usize,
    pub product: (usize, Shape),
    pub program: Program,
    pub pool: Option<Pool>,
}

/// What takes the planes that the program leaves, before they are gone.
#[derive(Clone)]
pub(crate) struct Pool {
    pub op: Op,
    /// One plane of its operand, and of its result.
    pub from: SmallVec<[usize; 3]>,
    pub to: SmallVec<[usize; 3]>,
}

/// One kernel launch.
#[derive(Clone)]
pub(crate) struct Step {
    pub action: Action,
    pub inputs: SmallVec<[Ref; 4]>,
    pub outputs: SmallVec<[(usize, Shape); 1]>,
    /// The nodes it computes.
    pub nodes: SmallVec<[NodeId; 2]>,
}

/// What a step is, for people.
#[derive(Debug, Clone)]
pub struct StepInfo {
    /// The ops it runs, in order.
    pub ops: Vec<String>,
    /// What an op with bodies of its own runs inside, a line per step: the steps of a branch or of a turn.
    pub inside: Vec<String>,
    /// Work and traffic: for a group, what enters and leaves it.
    pub cost: Cost,
    /// What it writes.
    pub results: Vec<Meta>,
    /// The user's lines of everything in it.
    pub lines: Vec<&'static Location<'static>>,
}

/// See the module.
#[derive(Clone)]
pub struct Plan {
    pub(crate) graph: Graph,
    pub(crate) storages: Vec<Storage>,
    pub(crate) steps: Vec<Step>,
    pub(crate) literals: Vec<Tensor>,
    /// The parameters that are to lie side by side, and in which order. None is in two lists.
    pub(crate) joined: Vec<Vec<usize>>,
    pub(crate) arena_bytes: usize,
    /// Floating-point work of the function as it was written, if known.
    pub(crate) recorded_flops: Option<u64>,
    /// What intermediate values would take if each had memory of its own.
    pub(crate) unplanned_bytes: usize,
    pub(crate) inputs: Vec<Meta>,
    /// Dtype and shape of each result, and whether a step writes it: a result that repeats another
    /// output is handed out as the same tensor.
    pub(crate) outputs: Vec<(Meta, usize)>,
    pub(crate) written: Vec<bool>,
    /// Runs of steps that do not touch each other's memory and run at the same time; all others are
    /// runs of one.
    pub(crate) batches: Vec<Range<usize>>,
}

impl Plan {
    /// Plans a graph. `captured` are the tensors that it was traced with.
    pub fn new(graph: &Graph, captured: &[Tensor]) -> Plan {
        Plan::with(graph, captured, |_| true)
    }

    /// Plans a graph with those of the [`STAGES`] that `is_on` admits.
    pub fn with(graph: &Graph, captured: &[Tensor], is_on: impl Fn(&str) -> bool) -> Plan {
        let mut planner = Planner::new(graph, captured, &is_on);
        for unit in order::units(graph) {
            planner.unit(&unit);
        }
        let (mut plan, followed) = planner.finish();
        let is_on = |stage: Stage| is_on(stage.name());
        if is_on(Stage::Epilogues) {
            plan.join_epilogues(&followed);
        }
        if is_on(Stage::Join) {
            plan.join_tiles();
        }
        plan.batches = match is_on(Stage::Parallel) {
            true => concurrent::batches(&mut plan),
            false => (0..plan.steps.len()).map(|i| i..i + 1).collect(),
        };
        plan
    }

    /// How many steps a run takes.
    pub fn n_steps(&self) -> usize {
        self.steps.len()
    }

    /// Bytes of the arena.
    pub fn arena_bytes(&self) -> usize {
        self.arena_bytes
    }

    /// Bytes that all intermediate values of the graph would take, each in memory of its own.
    pub fn unplanned_bytes(&self) -> usize {
        self.unplanned_bytes
    }

    /// Floating-point work of one run.
    pub fn flops(&self) -> u64 {
        self.graph.flops()
    }

    /// Also tells what the function took before passes changed it.
    pub fn compared_with(mut self, recorded: &Graph) -> Plan {
        self.recorded_flops = Some(thalweg_graph::passes::dce(recorded).flops());
        self
    }

    /// The graph that was planned.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Each step, for people.
    pub fn steps(&self) -> impl ExactSizeIterator<Item = StepInfo> + '_ {
        self.steps.iter().map(|step| self.info(step))
    }

    /// One step, for people.
    pub fn step_info(&self, i: usize) -> StepInfo {
        self.info(&self.steps[i])
    }

    fn info(&self, step: &Step) -> StepInfo {
        let mut lines: Vec<_> = step.nodes.iter().filter_map(|&id| self.graph.node(id).at).collect();
        lines.dedup();
        let ops = match step.nodes.is_empty() {
            true => vec!["copy".to_owned()],
            false => step
                .nodes
                .iter()
                .filter_map(|&id| self.graph.op(id))
                .map(|op| op.label().to_owned())
                .collect(),
        };
        let inside = step.nodes.iter().filter_map(|&id| self.graph.op(id)).flat_map(Op::inside).collect();
        let meta = |(storage, shape): &(usize, Shape)| Meta::new(self.storages[*storage].dtype, shape);
        let results: Vec<Meta> = step.outputs.iter().map(meta).collect();
        StepInfo { ops, inside, cost: self.cost(step), results, lines }
    }

    /// The node behind each result of a step; empty for a copy.
    pub(crate) fn result_nodes(&self, i: usize) -> Vec<NodeId> {
        match &self.steps[i].action {
            Action::Tiles(programs) => programs.iter().flat_map(|p| &p.results).map(|r| r.node).collect(),
            Action::Then(then) if then.pool.is_some() => {
                self.steps[i].nodes.last().copied().into_iter().collect()
            }
            Action::Then(then) => {
                let results = then.program.results.iter().map(|r| r.node);
                let n_rest = self.steps[i].outputs.len() - then.program.results.len();
                results.chain(self.steps[i].nodes[..n_rest].iter().copied()).collect()
            }
            _ => self.steps[i].nodes.to_vec(),
        }
    }

    /// The nodes that a step computes, in order.
    pub(crate) fn members(&self, i: usize) -> Vec<NodeId> {
        let mut members = self.steps[i].nodes.to_vec();
        members.sort_unstable();
        members
    }

    /// Where the first `n_done` steps have put each value: step and position among its results.
    pub(crate) fn written_until(&self, n_done: usize) -> HashMap<NodeId, (usize, usize)> {
        let of_step =
            |i: usize| self.result_nodes(i).into_iter().enumerate().map(move |(k, node)| (node, (i, k)));
        (0..n_done).flat_map(of_step).collect()
    }

    /// The storages that a step writes.
    pub(crate) fn writes_of(&self, i: usize) -> impl Iterator<Item = usize> + '_ {
        let product = match &self.steps[i].action {
            Action::Then(then) if then.pool.is_none() => Some(then.product.0),
            _ => None,
        };
        self.steps[i].outputs.iter().map(|(storage, _)| *storage).chain(product)
    }

    /// The step that gives a result its value.
    pub(crate) fn step_of_output(&self, i: usize) -> usize {
        self.last_step_into(Home::Output(self.outputs[i].1))
    }

    /// The step that gives a parameter its new value.
    pub(crate) fn step_of_param(&self, p: usize) -> usize {
        self.last_step_into(Home::Param(p))
    }

    fn last_step_into(&self, home: Home) -> usize {
        let writes = |i: &usize| self.writes_of(*i).any(|s| self.storages[s].home == home);
        (0..self.steps.len()).rev().find(writes).unwrap_or(self.steps.len() - 1)
    }

    /// How many steps run at the same time as another.
    pub fn n_concurrent(&self) -> usize {
        self.batches.iter().filter(|b| b.len() > 1).map(|b| b.len()).sum()
    }

    pub(crate) fn cost(&self, step: &Step) -> Cost {
        let flops = step.nodes.iter().map(|&id| self.graph.cost(id).flops).sum();
        let is_stored = |r: &&Ref| self.storages[r.storage].home != Home::Passing;
        let read = step.inputs.iter().filter(is_stored).map(|r| {
            let len = self.storages[r.storage].len.min(r.layout.numel());
            len * self.storages[r.storage].dtype.size()
        });
        let written = step.outputs.iter().map(|(s, shape)| shape.numel() * self.storages[*s].dtype.size());
        Cost { flops, bytes: (read.sum::<usize>() + written.sum::<usize>()) as u64 }
    }
}

pub(crate) struct Planner<'a> {
    pub graph: &'a Graph,
    captured: &'a [Tensor],
    pub values: Vec<Option<Ref>>,
    pub storages: Vec<Storage>,
    pub steps: Vec<Step>,
    literals: Vec<Tensor>,
    pub joined: Vec<Vec<usize>>,
    /// For each storage, the step that writes it.
    pub born: Vec<Option<usize>>,
    /// For each step, how many of those behind it are done with it, piece by piece: a group that continues it, and a
    /// pooling that takes its planes.
    pub followed: Vec<usize>,
    inputs: Vec<Option<Meta>>,
    n_uses: Vec<u32>,
    is_on: &'a dyn Fn(&str) -> bool,
}

impl<'a> Planner<'a> {
    fn new(graph: &'a Graph, captured: &'a [Tensor], is_on: &'a dyn Fn(&str) -> bool) -> Self {
        Self {
            graph,
            captured,
            is_on,
            values: vec![None; graph.nodes().len()],
            storages: Vec::new(),
            steps: Vec::new(),
            literals: Vec::new(),
            joined: Vec::new(),
            born: Vec::new(),
            followed: Vec::new(),
            inputs: vec![None; graph.inputs.len()],
            n_uses: graph.n_uses(),
        }
    }

    pub fn is_on(&self, stage: Stage) -> bool {
        (self.is_on)(stage.name())
    }

    pub fn value(&self, id: NodeId) -> &Ref {
        self.values[id.index()].as_ref().expect("units come in topological order")
    }

    fn storage(&mut self, home: Home, meta: &Meta, born: Option<usize>) -> usize {
        self.storages.push(Storage { home, dtype: meta.dtype, len: meta.numel() });
        self.born.push(born);
        self.storages.len() - 1
    }

    fn unit(&mut self, members: &[NodeId]) {
        match members {
            [id] if !self.is_on(Stage::Epilogues) || !self.continues_product(*id) => self.single(*id),
            _ => self.group(members),
        }
    }

    fn single(&mut self, id: NodeId) {
        let graph = self.graph;
        let node = graph.node(id);
        let value = match &node.kind {
            Kind::Input(i) => {
                self.inputs[*i] = Some(node.meta.clone());
                self.leaf(Home::Input(*i), &node.meta)
            }
            Kind::Param(i) => self.leaf(Home::Param(*i), &node.meta),
            Kind::Captured(i) => self.ready(Home::Captured(*i), &self.captured[*i].clone()),
            Kind::Literal(literal) => {
                self.literals.push(literal.tensor().clone());
                self.ready(Home::Literal(self.literals.len() - 1), literal.tensor())
            }
            Kind::Op(op) => self.op(id, op),
        };
        self.values[id.index()] = Some(value);
    }

    fn leaf(&mut self, home: Home, meta: &Meta) -> Ref {
        let storage = self.storage(home, meta, None);
        Ref { storage, layout: Layout::contiguous(meta.shape.clone()) }
    }

    /// A tensor that exists already, laid out as it is.
    fn ready(&mut self, home: Home, t: &Tensor) -> Ref {
        let storage = self.storage(home, t.meta(), None);
        self.storages[storage].len = t.layout().end().max(1);
        Ref { storage, layout: t.layout().clone() }
    }

    /// A join of tensors that never change, made once.
    fn constant(&self, id: NodeId, op: &Op) -> Option<Tensor> {
        let ready = |i: &NodeId| match &self.graph.node(*i).kind {
            Kind::Captured(c) => Some(self.captured[*c].stop_gradient()),
            Kind::Literal(literal) => Some(literal.tensor().clone()),
            _ => None,
        };
        let inputs: Vec<Tensor> = self.graph.node(id).inputs.iter().map(ready).collect::<Option<_>>()?;
        matches!(op, Op::Concat(_)).then(|| apply(op.clone(), &inputs.iter().collect::<Vec<_>>()).ok())?
    }

    /// A stack of the rows of parameters: no step at all if they can lie side by side. Each has one place, so it can have
    /// neighbours in one list only.
    fn neighbours(&mut self, id: NodeId, op: &Op) -> Option<usize> {
        let Op::Concat(Concat { axis: 0 }) = op else { return None };
        let graph = self.graph;
        let inputs = &graph.node(id).inputs;
        let param = |i: &NodeId| if let Kind::Param(p) = graph.node(*i).kind { Some(p) } else { None };
        let params: Vec<usize> = inputs.iter().map(param).collect::<Option<_>>()?;
        if let Some(known) = self.joined.iter().position(|list| *list == params) {
            return Some(known);
        }
        let fits = inputs
            .iter()
            .map(|&i| &graph.node(i).meta)
            .all(|m| Buffer::can_have_neighbour(m.dtype, m.numel()));
        let free = |p: &usize| {
            self.joined.iter().all(|list| !list.contains(p)) && params.iter().filter(|q| *q == p).count() == 1
        };
        (fits && params.iter().all(free)).then(|| {
            self.joined.push(params);
            self.joined.len() - 1
        })
    }

    fn op(&mut self, id: NodeId, op: &Op) -> Ref {
        let node = self.graph.node(id);
        if let Some(list) = self.neighbours(id, op) {
            return self.leaf(Home::Joined(list), &node.meta);
        }
        if let Some(joined) = self.constant(id, op) {
            self.literals.push(joined.clone());
            return self.ready(Home::Literal(self.literals.len() - 1), &joined);
        }
        if let [x] = node.inputs[..] {
            let x = self.value(x);
            if let Some(layout) = op.view(&x.layout, &node.meta.shape) {
                return Ref { storage: x.storage, layout };
            }
        }
        let inputs: SmallVec<[Ref; 4]> = node.inputs.iter().map(|&i| self.value(i).clone()).collect();
        let storage = self.storage(Home::Arena(0), &node.meta, Some(self.steps.len()));
        let outputs = smallvec![(storage, node.meta.shape.clone())];
        self.steps.push(Step { action: Action::Op(op.clone()), inputs, outputs, nodes: smallvec![id] });
        Ref { storage, layout: Layout::contiguous(node.meta.shape.clone()) }
    }

    fn group(&mut self, members: &[NodeId]) {
        let graph = self.graph;
        let inside = |id: NodeId| {
            members
                .iter()
                .map(|&m| graph.node(m).inputs.iter().filter(|&&i| i == id).count() as u32)
                .sum::<u32>()
        };
        // Reshapes and broadcasts are views of what they read, inside and outside.
        let is_view = |id: NodeId| matches!(graph.op(id), Some(Op::Reshape(_) | Op::Broadcast(_)));
        let mut read_outside: Vec<NodeId> =
            members.iter().copied().filter(|&id| self.n_uses[id.index()] > inside(id)).collect();
        for &id in members.iter().rev().filter(|&&id| is_view(id)) {
            if read_outside.contains(&id) {
                read_outside.push(graph.node(id).inputs[0]);
            }
        }
        let needed = |id: NodeId| !is_view(id) && read_outside.contains(&id);
        let layout = |id: NodeId| self.value(id).layout.clone();
        let program = Program::new(graph, members, &layout, &needed);
        let inputs = program.operands.iter().map(|o| self.value(o.node).clone()).collect();
        let mut outputs = SmallVec::new();
        for node in program.results.iter().map(|r| r.node).collect::<Vec<_>>() {
            let meta = &graph.node(node).meta;
            let storage = self.storage(Home::Arena(0), meta, Some(self.steps.len()));
            outputs.push((storage, meta.shape.clone()));
            self.values[node.index()] = Some(Ref { storage, layout: Layout::contiguous(meta.shape.clone()) });
        }
        for &id in members.iter().filter(|&&id| is_view(id) && read_outside.contains(&id)) {
            let (x, node) = (self.value(graph.node(id).inputs[0]), graph.node(id));
            let layout = graph.op(id).and_then(|op| op.view(&x.layout, &node.meta.shape));
            let layout = layout.expect("what a program writes is dense");
            self.values[id.index()] = Some(Ref { storage: x.storage, layout });
        }
        self.steps.push(Step {
            action: Action::Tiles(vec![program]),
            inputs,
            outputs,
            nodes: members.into(),
        });
    }

    /// A step that copies a value.
    pub fn copy(&mut self, from: &Ref, home: Home) -> usize {
        let meta = Meta::new(self.storages[from.storage].dtype, from.layout.shape());
        let to = self.storage(home, &meta, Some(self.steps.len()));
        let action = Action::Op(Reshape { shape: meta.shape.clone() }.into());
        let outputs = smallvec![(to, meta.shape.clone())];
        self.steps.push(Step { action, inputs: smallvec![from.clone()], outputs, nodes: smallvec![] });
        to
    }

    /// The plan, and how many steps follow each of its steps, piece by piece.
    fn finish(mut self) -> (Plan, Vec<usize>) {
        if self.is_on(Stage::Epilogues) {
            self.follow_products();
        }
        let to_copy = self.write_in_place();
        // Results are copied out before parameters are: they may be the old values.
        let outputs = self.hand_out();
        let unplanned_bytes = self.unplanned();
        self.copy_to_params(to_copy);
        if self.is_on(Stage::Planes) {
            self.pass_planes();
        }
        if self.is_on(Stage::InPlace) {
            self.reuse_operands();
        }
        let arena_bytes = self.place();
        self.share_operands();
        let written = (0..self.graph.params.len()).map(|p| self.graph.writes.iter().any(|&(w, _)| w == p));
        let written = written.collect();
        let inputs = self.inputs.into_iter().map(|m| m.expect("passes keep operands")).collect();
        let plan = Plan {
            graph: self.graph.clone(),
            storages: self.storages,
            steps: self.steps,
            literals: self.literals,
            joined: self.joined,
            arena_bytes,
            unplanned_bytes,
            recorded_flops: None,
            inputs,
            outputs,
            written,
            batches: Vec::new(),
        };
        (plan, self.followed)
    }

    /// Bytes of all values that are neither handed out nor new values of parameters, each in memory of its own.
    fn unplanned(&self) -> usize {
        let is_kept = |id: NodeId| {
            let home = self.values[id.index()].as_ref().map(|v| self.storages[v.storage].home);
            matches!(home, Some(Home::Param(_) | Home::Output(_)))
        };
        let is_view = |id: NodeId| {
            self.values[id.index()].as_ref().is_some_and(|v| match self.born[v.storage] {
                None => true,
                Some(step) => !self.steps[step].nodes.contains(&id),
            })
        };
        let fused_view = |id: NodeId| {
            self.graph.node(id).group != 0
                && matches!(self.graph.op(id), Some(Op::Reshape(_) | Op::Broadcast(_)))
        };
        let op =
            |id: &NodeId| self.graph.op(*id).is_some() && !is_view(*id) && !fused_view(*id) && !is_kept(*id);
        self.graph.ids().filter(op).map(|id| self.graph.node(id).meta.bytes()).sum()
    }
}

/// Whether a value is all of its storage, in order.
pub(crate) fn whole(value: &Ref, storages: &[Storage]) -> bool {
    value.layout.is_contiguous()
        && value.layout.offset() == 0
        && value.layout.numel() == storages[value.storage].len
}
