//! Looking into a compiled function: step by step, value by value, against eager execution.

use std::fmt;

use thalweg_core::{DType, View};
use thalweg_graph::{Graph, Kind, NodeId};
use thalweg_tensor::{OpError, Tensor, apply};

use crate::error::RunError;
use crate::executor::Executor;
use crate::jit::JitOptions;
use crate::plan::StepInfo;
use crate::probe;

/// A run that goes one step at a time. Parameters have their new values only where steps have written
/// them; when the debugger is dropped, all of them get back what they had before.
pub struct Debugger<'a> {
    executor: &'a mut Executor,
    /// The function as it was traced, and what was made of it.
    written: (&'a Graph, &'a JitOptions),
    inputs: Vec<Tensor>,
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

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step {}: {}\n      {}", self.step, self.what, self.info)
    }
}

impl<'a> Debugger<'a> {
    pub(crate) fn new(
        executor: &'a mut Executor,
        written: (&'a Graph, &'a JitOptions),
        inputs: Vec<Tensor>,
    ) -> Result<Self, RunError> {
        let before: Vec<Tensor> = executor.params().iter().map(|p| p.get().stop_gradient()).collect();
        let views: Vec<View<'_>> = inputs.iter().map(Tensor::view).collect();
        executor.begin(&views)?;
        drop(views);
        Ok(Self { executor, written, inputs, before, next: 0, is_over: false })
    }

    /// Runs the next step. `None` after the last.
    pub fn step(&mut self) -> Result<Option<Stepped>, RunError> {
        let index = self.next;
        if index == self.executor.plan().n_steps() {
            return Ok(None);
        }
        self.executor.step(index)?;
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

    /// Runs on until the first value that is infinite or not a number. Of a fused group, the op that gave it
    /// first is named with its line.
    pub fn run_until_non_finite(&mut self) -> Result<Option<Finding>, RunError> {
        let found = self.run_until(|s| s.values.iter().find_map(not_finite))?;
        let Some(mut found) = found else { return Ok(None) };
        let members = self.executor.plan().members(found.step);
        let values = self.compute(&members)?;
        let first = members.iter().zip(&values).find_map(|(&id, value)| Some((id, not_finite(value)?)));
        if let Some((id, what)) = first {
            let node = self.executor.plan().graph().node(id);
            let op = self.executor.plan().graph().op(id).map_or("a leaf", |op| op.label());
            let at = node.at.map_or_else(String::new, |at| format!(" at {at}"));
            found.what = format!("{op}{at}: {what}");
        }
        Ok(Some(found))
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
                    Kind::Op(op) => probe::quietly(|| apply(op.clone(), &operands())).map_err(of_op)?,
                });
            }
        }
        let value = |id: &NodeId| values[id.index()].clone().expect("computed, since it was needed");
        Ok(wanted.iter().map(value).collect())
    }

    /// The value of every node of a graph with the operands and parameters of this run, op by op.
    fn eager(&self, graph: &Graph) -> Result<Vec<Tensor>, RunError> {
        let values = probe::quietly(|| graph.values(&self.inputs, &self.before, self.executor.captured()));
        values.map_err(of_op)
    }

    /// Runs all steps and compares each value with the op-by-op one: the first step that differs by
    /// more than `rtol` of the largest magnitude. Then compares results and new values of parameters with those of the
    /// function as it was written: where they differ, a pass is wrong, and it is named.
    pub fn verify(&mut self, rtol: f64) -> Result<Option<Finding>, RunError> {
        let eager = self.eager(self.executor.plan().graph())?;
        let found = self.run_until(|s| {
            s.nodes
                .iter()
                .zip(&s.values)
                .find_map(|(node, got)| differs(&eager[node.index()], got, rtol, "eager"))
        })?;
        drop(eager);
        match found {
            Some(found) => Ok(Some(found)),
            None => self.verify_passes(rtol),
        }
    }

    fn verify_passes(&mut self, rtol: f64) -> Result<Option<Finding>, RunError> {
        let want = self.roots(self.written.0)?;
        self.executor.end();
        self.is_over = true;
        let graph = self.executor.plan().graph();
        let new = graph.writes.iter().map(|&(p, _)| self.executor.params()[p].get());
        let got: Vec<Tensor> = self.executor.outputs().iter().cloned().chain(new).collect();
        let wrong = want.iter().zip(&got).enumerate();
        let wrong = wrong
            .filter_map(|(i, (want, got))| Some((i, differs(want, got, rtol, "the function as written")?)));
        let Some((i, what)) = wrong.into_iter().next() else { return Ok(None) };
        let (step, name) = match i.checked_sub(graph.outputs.len()) {
            None => (self.executor.plan().step_of_output(i), format!("result `{}`", graph.outputs[i].0)),
            Some(w) => {
                let p = graph.writes[w].0;
                (self.executor.plan().step_of_param(p), format!("param `{}`", graph.params[p]))
            }
        };
        let mut error = None;
        let pass = self.written.1.blame(self.written.0, self.executor, |changed| {
            let roots = self.roots(changed).map_err(|e| error = Some(e)).unwrap_or_default();
            want.iter().zip(&roots).any(|(want, got)| differs(want, got, rtol, "").is_some())
        });
        if let Some(error) = error {
            return Err(error);
        }
        let by = pass.map_or_else(String::new, |pass| format!("; pass `{pass}` changed it"));
        let info = self.executor.plan().step_info(step);
        Ok(Some(Finding { step, info, what: format!("{name}: {what}{by}") }))
    }

    /// Results and new values of parameters of a graph, op by op.
    fn roots(&self, graph: &Graph) -> Result<Vec<Tensor>, RunError> {
        let values = self.eager(graph)?;
        Ok(graph.roots().map(|id| values[id.index()].clone()).collect())
    }
}

fn of_op(source: OpError) -> RunError {
    RunError::Op { source: Box::new(source), at: None }
}

fn not_finite(t: &Tensor) -> Option<String> {
    let list = floats(t)?;
    let bad = list.iter().filter(|x| !x.is_finite()).count();
    let first = list.iter().position(|x| !x.is_finite())?;
    Some(format!("{bad} of {} values are not finite; element {first} is {}", list.len(), list[first]))
}

impl Drop for Debugger<'_> {
    fn drop(&mut self) {
        self.executor.end();
        for (param, value) in self.executor.params().iter().zip(&self.before) {
            param.set(value.clone());
        }
    }
}

fn floats(t: &Tensor) -> Option<Vec<f64>> {
    t.dtype().is_float().then(|| t.stop_gradient().to_dtype(DType::F64).to_vec())
}

/// Where a value is not what `reference` gives.
fn differs(want: &Tensor, got: &Tensor, rtol: f64, reference: &str) -> Option<String> {
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
