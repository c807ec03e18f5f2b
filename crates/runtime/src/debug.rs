//! Looking into a compiled function: step by step, value by value, against eager execution.

use std::fmt;
use std::sync::Arc;

use thalweg_core::{DType, View};
use thalweg_graph::{Graph, Kind, NodeId};
use thalweg_tensor::{OpError, Param, Tensor, apply};

use crate::error::RunError;
use crate::executor::Executor;
use crate::look::{self, Look, Written};
use crate::plan::StepInfo;
use crate::probe;

/// A run that goes one step at a time, on parameters of its own: those of the function can be read and set meanwhile, and
/// are not changed by it.
pub struct Debugger<'a> {
    executor: &'a mut Executor,
    /// The function as it was traced.
    written: Arc<Written>,
    inputs: Vec<Tensor>,
    /// The parameters of the function; the executor has copies of them meanwhile.
    params: Vec<Param>,
    before: Vec<Tensor>,
    next: usize,
    /// Whether everything that a run holds was let go: its memory may be looked at no more.
    is_over: bool,
}

/// What a step has written.
pub struct Stepped {
    /// Which step it was.
    pub index: usize,
    /// What it is.
    pub info: StepInfo,
    /// The nodes whose values it wrote; none for a copy.
    pub nodes: Vec<NodeId>,
    /// The values.
    pub values: Vec<Tensor>,
}

/// The step as plans print it, and the values below.
impl fmt::Display for Stepped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}", self.index, self.info)?;
        self.nodes.iter().zip(&self.values).try_for_each(|(id, value)| write!(f, "\n{id} = {value}"))
    }
}

/// A step whose values are not what they should be.
#[derive(Debug, Clone)]
pub struct Finding {
    /// Which step.
    pub step: usize,
    /// What it runs.
    pub info: StepInfo,
    /// What is wrong.
    pub what: String,
}

impl Finding {
    pub(crate) fn because(mut self, why: &str) -> Self {
        self.what = format!("{}; {why}", self.what);
        self
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}\n      {}", self.step, self.what, self.info)
    }
}

impl<'a> Debugger<'a> {
    pub(crate) fn new(
        executor: &'a mut Executor,
        written: Arc<Written>,
        inputs: Vec<Tensor>,
    ) -> Result<Self, RunError> {
        let before: Vec<Tensor> = executor.params().iter().map(|p| p.get().stop_gradient()).collect();
        let copy = |(param, value): (&Param, &Tensor)| Param::state(param.name(), value.clone());
        let copies = executor.params().iter().zip(&before).map(copy).collect();
        let params = executor.exchange_params(copies);
        let this = Self { executor, written, inputs, params, before, next: 0, is_over: false };
        let views: Vec<View<'_>> = this.inputs.iter().map(Tensor::view).collect();
        this.executor.begin(&views)?;
        drop(views);
        Ok(this)
    }

    /// What the function itself gives outside of any trace: `f`'s results, then the new values of parameters. The
    /// parameters get back what they had.
    pub(crate) fn eagerly(&self, f: impl FnOnce() -> Vec<Tensor>) -> Vec<Tensor> {
        Param::restoring(&self.params, || {
            let mut values = probe::quietly(f);
            let writes = &self.executor.plan().graph().writes;
            values.extend(writes.iter().map(|&(p, _)| self.params[p].get().stop_gradient()));
            values
        })
    }

    /// Runs the next step. `None` after the last.
    pub fn step(&mut self) -> Result<Option<Stepped>, RunError> {
        let index = self.next;
        if index == self.executor.plan().n_steps() {
            return Ok(None);
        }
        look::compiled(|| self.executor.step(index))?;
        self.next += 1;
        let (info, nodes) = (self.executor.plan().step_info(index), self.executor.plan().result_nodes(index));
        Ok(Some(Stepped { index, info, nodes, values: self.executor.written_by(index) }))
    }

    /// Runs on until a step for whose values `stop` says why.
    pub fn run_until(
        &mut self,
        mut stop: impl FnMut(&Stepped) -> Option<String>,
    ) -> Result<Option<Finding>, RunError> {
        while let Some(stepped) = self.step()? {
            if let Some(what) = stop(&stepped) {
                return Ok(Some(Finding { step: stepped.index, info: stepped.info, what }));
            }
        }
        Ok(None)
    }

    /// Runs on until a step that comes from this line of this file (its last part will do).
    pub fn run_until_line(&mut self, file: &str, line: u32) -> Result<Option<Finding>, RunError> {
        self.run_until(|s| {
            let here = s.info.lines.iter().any(|at| at.line() == line && at.file().ends_with(file));
            here.then(|| format!("comes from {file}:{line}"))
        })
    }

    /// Runs on until the first value that is infinite or not a number, be it fused away or inside a branch or loop; its op
    /// is named with its line.
    pub fn run_until_non_finite(&mut self) -> Result<Option<Finding>, RunError> {
        while self.next < self.executor.plan().n_steps() {
            // Before the step runs, its operands are still there.
            let inside = self.not_finite_in(self.next)?;
            let Some(stepped) = self.step()? else { break };
            if let Some(what) = inside.or_else(|| stepped.values.iter().find_map(not_finite)) {
                return Ok(Some(Finding { step: stepped.index, info: stepped.info, what }));
            }
        }
        Ok(None)
    }

    /// The first value among those that a step computes, stored or not, that is not finite.
    fn not_finite_in(&self, step: usize) -> Result<Option<String>, RunError> {
        let graph = self.executor.plan().graph();
        let members = self.executor.plan().members(step);
        let mut first = None;
        self.compute_with(&members, |id, op| {
            let (value, inside) = look::looking(Look::NotFinite, op);
            let inside = inside.map(|what| format!("{what}; this is inside {}", look::named(graph, id)));
            if let (Ok(value), true, true) = (&value, first.is_none(), members.contains(&id)) {
                first = inside.or_else(|| look::not_finite_at(graph, id, value));
            }
            value
        })?;
        Ok(first)
    }

    /// The value of any node of the planned graph, fused away or not: taken from memory where it is still there,
    /// computed again from what is where not. Probes do not print again.
    pub fn peek(&self, node: NodeId) -> Result<Tensor, RunError> {
        Ok(self.compute(&[node])?.remove(0))
    }

    /// The values that this line of this file (its last part will do) gives, in the order of the graph.
    pub fn peek_line(&self, file: &str, line: u32) -> Result<Vec<Tensor>, RunError> {
        let graph = self.executor.plan().graph();
        let is_here = |id: &NodeId| {
            let at = graph.node(*id).at;
            graph.op(*id).is_some() && at.is_some_and(|at| at.line() == line && at.file().ends_with(file))
        };
        let nodes: Vec<NodeId> = graph.ids().filter(is_here).collect();
        if nodes.is_empty() {
            let lines =
                graph.nodes().iter().filter_map(|n| n.at).map(|at| format!("{}:{}", at.file(), at.line()));
            return Err(self.no_name("value of line", format!("{file}:{line}"), lines.collect()));
        }
        self.compute(&nodes)
    }

    /// The value under a [`probe`](crate::probe).
    pub fn peek_probe(&self, name: &str) -> Result<Tensor, RunError> {
        let graph = self.executor.plan().graph();
        let labels = || graph.ids().filter_map(|id| Some((id, graph.op(id)?.label())));
        match labels().find(|(_, label)| *label == probe::label(name)) {
            Some((id, _)) => self.peek(id),
            None => {
                let probes = labels().map(|(_, label)| label.to_owned()).filter(|l| l.starts_with("probe `"));
                Err(self.no_name("probe", name.to_owned(), probes.collect()))
            }
        }
    }

    fn no_name(&self, role: &'static str, name: String, mut known: Vec<String>) -> RunError {
        known.dedup();
        let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
        RunError::NoName { role, name, known }
    }

    /// The values of some nodes, and of as few others as it takes.
    fn compute(&self, wanted: &[NodeId]) -> Result<Vec<Tensor>, RunError> {
        self.compute_with(wanted, |_, op| look::looking(Look::Values, op).0)
    }

    /// [`Debugger::compute`]; `run` runs each op that it takes.
    fn compute_with(
        &self,
        wanted: &[NodeId],
        mut run: impl FnMut(NodeId, &dyn Fn() -> Result<Tensor, OpError>) -> Result<Tensor, OpError>,
    ) -> Result<Vec<Tensor>, RunError> {
        let graph = self.executor.plan().graph();
        let written =
            if self.is_over { Default::default() } else { self.executor.plan().written_until(self.next) };
        let mut values: Vec<Option<Tensor>> = vec![None; graph.nodes().len()];
        let mut is_needed = vec![false; graph.nodes().len()];
        wanted.iter().for_each(|id| is_needed[id.index()] = true);
        for id in graph.ids().rev().filter(|id| graph.op(*id).is_some()) {
            if is_needed[id.index()] {
                values[id.index()] =
                    written.get(&id).and_then(|&at| self.executor.still_there(at, self.next));
                if values[id.index()].is_none() {
                    graph.node(id).inputs.iter().for_each(|i| is_needed[i.index()] = true);
                }
            }
        }
        for id in graph.ids().filter(|id| is_needed[id.index()]) {
            if values[id.index()].is_none() {
                let node = graph.node(id);
                let operands =
                    || node.inputs.iter().filter_map(|i| values[i.index()].as_ref()).collect::<Vec<_>>();
                values[id.index()] = Some(match &node.kind {
                    Kind::Input(i) => self.inputs[*i].clone(),
                    Kind::Param(i) => self.before[*i].clone(),
                    Kind::Captured(i) => self.executor.captured()[*i].clone(),
                    Kind::Literal(literal) => literal.tensor().clone(),
                    Kind::Op(op) => run(id, &|| apply(op.clone(), &operands())).map_err(of_op)?,
                });
            }
        }
        let value = |id: &NodeId| values[id.index()].clone().expect("computed, since it was needed");
        Ok(wanted.iter().map(value).collect())
    }

    /// The value of every node of a graph with the operands and parameters of this run, op by op.
    fn eager(&self, graph: &Graph) -> Result<Vec<Tensor>, RunError> {
        let values = || graph.values(&self.inputs, &self.before, self.executor.captured());
        look::looking(Look::Values, values).0.map_err(of_op)
    }

    /// Runs all steps and compares each value with the op-by-op one: the first step that differs by
    /// more than `rtol` of the largest magnitude. Of a branch or loop, it is told which step or pass inside is wrong. Then
    /// compares results and new values of parameters with those of the function as it was written: where they differ, a
    /// pass is wrong, and it is named. Probes do not print.
    pub fn verify(&mut self, rtol: f64) -> Result<Option<Finding>, RunError> {
        probe::quietly(|| self.verify_steps(rtol))
    }

    fn verify_steps(&mut self, rtol: f64) -> Result<Option<Finding>, RunError> {
        let eager = self.eager(self.executor.plan().graph())?;
        let mut wrong = None;
        let found = self.run_until(|s| {
            let differs = |(node, got): (&NodeId, &Tensor)| {
                let what = differs(&eager[node.index()], got, rtol, "eager")?;
                wrong = Some(*node);
                Some(what)
            };
            s.nodes.iter().zip(&s.values).find_map(differs)
        })?;
        let Some(mut found) = found else {
            drop(eager);
            return self.verify_passes(rtol);
        };
        if let Some(inside) = wrong.and_then(|node| self.inside(node, &eager, rtol)) {
            found = found.because(&format!("inside, {inside}"));
        }
        Ok(Some(found))
    }

    /// What is wrong inside the op of a node, if it has bodies, on these operands.
    fn inside(&self, node: NodeId, values: &[Tensor], rtol: f64) -> Option<String> {
        let graph = self.executor.plan().graph();
        let operands: Vec<&Tensor> = graph.node(node).inputs.iter().map(|i| &values[i.index()]).collect();
        let op = graph.op(node)?.clone();
        look::looking(Look::Steps(rtol), || apply(op, &operands)).1
    }

    fn verify_passes(&mut self, rtol: f64) -> Result<Option<Finding>, RunError> {
        let want = self.roots(&self.written.graph)?;
        self.finish()?;
        let Some(found) = self.compare(&want, rtol, "the function as written") else { return Ok(None) };
        let mut error = None;
        let pass = self.written.options.blame(&self.written.graph, self.executor, |changed| {
            let roots = self.roots(changed).map_err(|e| error = Some(e)).unwrap_or_default();
            want.iter().zip(&roots).any(|(want, got)| differs(want, got, rtol, "").is_some())
        });
        if let Some(error) = error {
            return Err(error);
        }
        Ok(Some(match pass {
            Some(pass) => found.because(&format!("pass `{pass}` changed it")),
            None => found,
        }))
    }

    /// Runs what is left, and lets go of the memory: from now on there are results.
    fn finish(&mut self) -> Result<(), RunError> {
        while self.step()?.is_some() {}
        self.executor.end();
        self.is_over = true;
        Ok(())
    }

    /// The first result, or new value of a parameter, of a run that is over that is not as it should be.
    pub(crate) fn compare(&self, want: &[Tensor], rtol: f64, reference: &str) -> Option<Finding> {
        let plan = self.executor.plan();
        let graph = plan.graph();
        let new = graph.writes.iter().map(|&(p, _)| self.executor.params()[p].get());
        let got: Vec<Tensor> = self.executor.outputs().iter().cloned().chain(new).collect();
        let mut wrong = want.iter().zip(&got).enumerate();
        let (i, what) = wrong.find_map(|(i, (want, got))| Some((i, differs(want, got, rtol, reference)?)))?;
        let (step, name) = match i.checked_sub(graph.outputs.len()) {
            None => (plan.step_of_output(i), format!("result `{}`", graph.outputs[i].0)),
            Some(w) => {
                let p = graph.writes[w].0;
                (plan.step_of_param(p), format!("param `{}`", graph.params[p]))
            }
        };
        Some(Finding { step, info: plan.step_info(step), what: format!("{name}: {what}") })
    }

    /// Results and new values of parameters of a graph, op by op.
    fn roots(&self, graph: &Graph) -> Result<Vec<Tensor>, RunError> {
        let values = self.eager(graph)?;
        Ok(graph.roots().map(|id| values[id.index()].clone()).collect())
    }
}

pub(crate) fn of_op(source: OpError) -> RunError {
    RunError::Op { source: Box::new(source), at: None }
}

pub(crate) fn not_finite(t: &Tensor) -> Option<String> {
    let list = floats(t)?;
    let bad = list.iter().filter(|x| !x.is_finite()).count();
    let first = list.iter().position(|x| !x.is_finite())?;
    Some(format!("{bad} of {} values are not finite; element {first} is {}", list.len(), list[first]))
}

impl Drop for Debugger<'_> {
    fn drop(&mut self) {
        self.executor.end();
        self.executor.exchange_params(std::mem::take(&mut self.params));
    }
}

fn floats(t: &Tensor) -> Option<Vec<f64>> {
    t.dtype().is_float().then(|| t.stop_gradient().to_dtype(DType::F64).to_vec())
}

/// Where a value is not what `reference` gives.
fn differs(want: &Tensor, got: &Tensor, rtol: f64, reference: &str) -> Option<String> {
    if want.meta() != got.meta() {
        return Some(format!("it is {}, {reference} gives {}", got.meta(), want.meta()));
    }
    let (want, got) = (
        want.stop_gradient().to_dtype(DType::F64).to_vec::<f64>(),
        got.stop_gradient().to_dtype(DType::F64).to_vec::<f64>(),
    );
    let scale = want.iter().filter(|x| x.is_finite()).fold(0.0, |m: f64, x| m.max(x.abs()));
    let wrong = |(w, g): (&f64, &f64)| {
        let equal = w == g || (w.is_nan() && g.is_nan());
        let near = (w - g).abs() <= rtol * scale.max(f64::MIN_POSITIVE);
        !(equal || near)
    };
    let i = want.iter().zip(&got).position(wrong)?;
    Some(format!("element {i} is {:e}, {reference} gives {:e}", got[i], want[i]))
}
