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

use crate::arena::{self, Lifetime};
use crate::concurrent;
use crate::order;
use crate::program::Program;

/// Operands of groups joined into one step: their addresses are gathered on the stack.
pub(crate) const MAX_OPERANDS: usize = 192;

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
/// and, unless one of them takes its place, that of the product.
#[derive(Clone)]
pub(crate) struct Then {
    pub op: Op,
    pub n_operands: usize,
    pub product: (usize, Shape),
    pub program: Program,
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
        let mut planner = Planner::new(graph, captured);
        for unit in order::units(graph) {
            planner.unit(&unit);
        }
        let (mut plan, continued) = planner.finish();
        plan.join_epilogues(&continued);
        plan.join_tiles();
        plan.batches = concurrent::batches(&mut plan);
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
            Action::Then(then) => Some(then.product.0),
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
        let read = step.inputs.iter().map(|r| {
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
    values: Vec<Option<Ref>>,
    pub storages: Vec<Storage>,
    pub steps: Vec<Step>,
    literals: Vec<Tensor>,
    joined: Vec<Vec<usize>>,
    /// For each storage, the step that writes it.
    pub born: Vec<Option<usize>>,
    /// For each step, whether the next one continues it piece by piece.
    pub continued: Vec<bool>,
    inputs: Vec<Option<Meta>>,
    n_uses: Vec<u32>,
}

impl<'a> Planner<'a> {
    fn new(graph: &'a Graph, captured: &'a [Tensor]) -> Self {
        Self {
            graph,
            captured,
            values: vec![None; graph.nodes().len()],
            storages: Vec::new(),
            steps: Vec::new(),
            literals: Vec::new(),
            joined: Vec::new(),
            born: Vec::new(),
            continued: Vec::new(),
            inputs: vec![None; graph.inputs.len()],
            n_uses: graph.n_uses(),
        }
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
            [id] if !self.continues_product(*id) => self.single(*id),
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
    fn copy(&mut self, from: &Ref, home: Home) -> usize {
        let meta = Meta::new(self.storages[from.storage].dtype, from.layout.shape());
        let to = self.storage(home, &meta, Some(self.steps.len()));
        let action = Action::Op(Reshape { shape: meta.shape.clone() }.into());
        let outputs = smallvec![(to, meta.shape.clone())];
        self.steps.push(Step { action, inputs: smallvec![from.clone()], outputs, nodes: smallvec![] });
        to
    }

    /// The plan, and for each of its steps whether the next one continues it.
    fn finish(mut self) -> (Plan, Vec<bool>) {
        let unplanned_bytes = self.unplanned();
        self.follow_products();
        let to_copy = self.write_in_place();
        // Results are copied out before parameters are: they may be the old values.
        let outputs = self.hand_out();
        self.copy_to_params(to_copy);
        self.reuse_operands();
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
        (plan, self.continued)
    }

    fn unplanned(&self) -> usize {
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
        let op = |id: &NodeId| self.graph.op(*id).is_some() && !is_view(*id) && !fused_view(*id);
        self.graph.ids().filter(op).map(|id| self.graph.node(id).meta.bytes()).sum()
    }

    /// The last step that reads each storage. A step that continues another is done piece by piece while that one still
    /// reads its operands.
    fn last_reads(&self) -> Vec<Option<usize>> {
        let mut last = vec![None; self.storages.len()];
        for (i, step) in self.steps.iter().enumerate() {
            let end = if self.is_continued(i) { i + 1 } else { i };
            step.inputs.iter().for_each(|r| last[r.storage] = Some(end));
        }
        last
    }

    fn is_continued(&self, step: usize) -> bool {
        self.continued.get(step) == Some(&true)
    }

    /// Gives new values of parameters their place over the old one, where nothing reads that later.
    /// Returns the rest.
    fn write_in_place(&mut self) -> Vec<(usize, Ref)> {
        let writes = self.graph.writes.clone();
        let old: HashMap<usize, usize> = (0..self.storages.len())
            .filter_map(|s| if let Home::Param(p) = self.storages[s].home { Some((p, s)) } else { None })
            .collect();
        let roots: Vec<Ref> = self.graph.roots().map(|id| self.value(id).clone()).collect();
        let mut copies = Vec::new();
        for (param, id) in writes {
            let value = self.value(id).clone();
            let read_at_end = |s: usize| roots.iter().any(|r| self.is_part_of(s, r.storage));
            let in_place = match self.born[value.storage] {
                Some(born)
                    if self.storages[value.storage].home == Home::Arena(0)
                        && whole(&value, &self.storages) =>
                {
                    old.get(&param)
                        .is_none_or(|&old| !read_at_end(old) && self.may_overwrite(old, value.storage, born))
                }
                _ => false,
            };
            match in_place {
                true => self.storages[value.storage].home = Home::Param(param),
                false => copies.push((param, value)),
            }
        }
        copies
    }

    fn copy_to_params(&mut self, copies: Vec<(usize, Ref)>) {
        // What is copied from a parameter's memory is saved first: that parameter may be written too.
        let mut saved = Vec::new();
        for (param, value) in copies {
            let from_param = matches!(self.storages[value.storage].home, Home::Param(_) | Home::Joined(_));
            let value = match from_param {
                true => {
                    let storage = self.copy(&value, Home::Arena(0));
                    Ref { storage, layout: Layout::contiguous(value.layout.shape().clone()) }
                }
                false => value,
            };
            saved.push((param, value));
        }
        for (param, value) in saved {
            self.copy(&value, Home::Param(param));
        }
    }

    /// Whether the step that writes `new` may write it into the memory of `old`: no later step reads
    /// the old value, and the step itself reads it only element by element.
    fn may_overwrite(&self, old: usize, new: usize, born: usize) -> bool {
        let reads = |step: &Step| step.inputs.iter().any(|r| self.is_part_of(old, r.storage));
        if self.steps[born + 1..].iter().any(reads) {
            return false;
        }
        let same_size = self.storages[old].len == self.storages[new].len
            && self.storages[old].dtype.size() == self.storages[new].dtype.size();
        let step = &self.steps[born];
        same_size
            && match &step.action {
                _ if !reads(step) => true,
                Action::Tiles(programs) => step
                    .inputs
                    .iter()
                    .zip(programs.iter().flat_map(|p| &p.operands))
                    .filter(|(r, _)| self.is_part_of(old, r.storage))
                    .all(|(r, o)| r.storage == old && o.is_in_step()),
                _ => false,
            }
    }

    /// Whether who reads `storage` reads all of `part`.
    fn is_part_of(&self, part: usize, storage: usize) -> bool {
        let homes = (self.storages[part].home, self.storages[storage].home);
        part == storage || matches!(homes, (Home::Param(p), Home::Joined(j)) if self.joined[j].contains(&p))
    }

    /// Gives results their place: in memory that is handed out.
    fn hand_out(&mut self) -> Vec<(Meta, usize)> {
        let mut outputs: Vec<(Meta, usize)> = Vec::new();
        for (i, (_, id)) in self.graph.outputs.iter().enumerate() {
            let (value, meta) = (self.value(*id).clone(), self.graph.node(*id).meta.clone());
            let same = self.graph.outputs[..i].iter().position(|(_, earlier)| earlier == id);
            if let Some(same) = same {
                outputs.push((meta, same));
                continue;
            }
            let in_place = self.born[value.storage].is_some()
                && self.storages[value.storage].home == Home::Arena(0)
                && whole(&value, &self.storages);
            match in_place {
                true => self.storages[value.storage].home = Home::Output(i),
                false => {
                    self.copy(&value, Home::Output(i));
                }
            }
            outputs.push((meta, i));
        }
        outputs
    }

    /// Lets a step write over an operand that is not read again.
    fn reuse_operands(&mut self) {
        let mut last = self.last_reads();
        let mut same: Vec<usize> = (0..self.storages.len()).collect();
        for i in 0..self.steps.len() {
            let step = &self.steps[i];
            let candidates: SmallVec<[usize; 4]> = match &step.action {
                Action::Tiles(programs) => {
                    (0..step.inputs.len()).filter(|&k| programs[0].operands[k].is_in_step()).collect()
                }
                Action::Op(op)
                    if op.reuses() & 1 != 0 && step.inputs.len() <= 2 && !step.nodes.is_empty() =>
                {
                    smallvec![0]
                }
                _ => continue,
            };
            let in_arena = |s: usize| self.storages[s].home == Home::Arena(0) && self.born[s].is_some();
            let continued = i.checked_sub(1).filter(|&p| self.is_continued(p)).map(|p| &self.steps[p]);
            let read_meanwhile =
                |from: usize| continued.is_some_and(|p| p.inputs.iter().any(|r| same[r.storage] == from));
            // `from` is the first storage of a chain that has taken over each other's memory.
            let fits = |from: usize, to: usize| {
                in_arena(from)
                    && in_arena(to)
                    && from != to
                    && last[from] == Some(i)
                    && !read_meanwhile(from)
                    && self.storages[from].dtype == self.storages[to].dtype
                    && self.storages[from].len == self.storages[to].len
                    && step
                        .inputs
                        .iter()
                        .filter(|r| same[r.storage] == from)
                        .all(|r| whole(r, &self.storages))
            };
            let mut taken: SmallVec<[(usize, usize); 2]> = SmallVec::new();
            for &(to, _) in &step.outputs {
                let free = |s: usize| taken.iter().all(|&(from, _)| from != s);
                let mut firsts = candidates.iter().map(|&k| same[step.inputs[k].storage]);
                taken.extend(firsts.find(|&s| free(s) && fits(s, to)).map(|from| (from, to)));
            }
            if let (Action::Op(op), Some(&(from, _))) = (&step.action, taken.first()) {
                // Reading the operand twice while it is overwritten is for tile programs only.
                if step.inputs.iter().filter(|r| same[r.storage] == from).count() > 1 {
                    continue;
                }
                self.steps[i].action = Action::Overwrite(op.clone());
            }
            for (from, to) in taken {
                // From now on both are one storage, which lives as long as the result.
                last[from] = last[to];
                same[to] = from;
            }
        }
        for step in &mut self.steps {
            step.inputs.iter_mut().for_each(|r| r.storage = same[r.storage]);
            step.outputs.iter_mut().for_each(|o| o.0 = same[o.0]);
        }
        self.values.iter_mut().flatten().for_each(|v| v.storage = same[v.storage]);
    }

    /// Lays the rest out in the arena.
    fn place(&mut self) -> usize {
        let last = self.last_reads();
        let mut used = vec![false; self.storages.len()];
        self.steps.iter().flat_map(|s| &s.outputs).for_each(|&(s, _)| used[s] = true);
        let in_arena = |s: &usize| used[*s] && self.storages[*s].home == Home::Arena(0);
        let ids: Vec<usize> = (0..self.storages.len()).filter(in_arena).collect();
        let lifetime = |&s: &usize| {
            let born = self.born[s].expect("steps write what lies in the arena");
            let bytes = self.storages[s].len * self.storages[s].dtype.size();
            let last = last[s].unwrap_or(born).max(born);
            // A small value stays a little longer than it must, or neighbours that could run at the
            // same time would fight for its place.
            let slack = if bytes <= concurrent::SMALL { concurrent::HORIZON } else { 0 };
            Lifetime { bytes, steps: born..=last + slack }
        };
        let (offsets, size) = arena::place(&ids.iter().map(lifetime).collect::<Vec<_>>());
        for (&s, offset) in ids.iter().zip(offsets) {
            self.storages[s].home = Home::Arena(offset);
        }
        size
    }

    /// Tells tile programs which of their results lie in the memory of an operand.
    fn share_operands(&mut self) {
        for step in &mut self.steps {
            let Action::Tiles(programs) = &mut step.action else { continue };
            let [program] = &mut programs[..] else { unreachable!("joined after this") };
            for (k, operand) in step.inputs.iter().enumerate() {
                let home = self.storages[operand.storage].home;
                for (result, &(s, _)) in step.outputs.iter().enumerate() {
                    if self.storages[s].home == home {
                        program.share_memory(k, result);
                    }
                }
            }
        }
    }
}

/// Whether a value is all of its storage, in order.
pub(crate) fn whole(value: &Ref, storages: &[Storage]) -> bool {
    value.layout.is_contiguous()
        && value.layout.offset() == 0
        && value.layout.numel() == storages[value.storage].len
}
