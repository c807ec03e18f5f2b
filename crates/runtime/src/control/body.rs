//! A body: a graph that an op runs, compiled, and its pull-back.

use std::cell::RefCell;
use std::sync::Arc;

use thalweg_graph::{Graph, Kind};
use thalweg_tensor::ops::Cost;
use thalweg_tensor::{Meta, OpError, Tensor, vjp};

use super::spares::{Spares, Taken};
use crate::error::RunError;
use crate::executor::Executor;
use crate::jit::JitOptions;
use crate::look::Written;
use crate::plan::Plan;

thread_local! {
    static OPTIONS: RefCell<JitOptions> = RefCell::default();
}

/// Bodies that are traced on this thread while it lives are compiled with these options.
pub(crate) struct BodyOptions(JitOptions);

impl BodyOptions {
    pub fn set(options: &JitOptions) -> Self {
        Self(OPTIONS.replace(options.of_body()))
    }
}

impl Drop for BodyOptions {
    fn drop(&mut self) {
        OPTIONS.set(std::mem::take(&mut self.0));
    }
}

/// A graph with executors, one for each thread that runs it at the same time.
pub(super) struct Body {
    pub(super) graph: Graph,
    /// Or why it could not be compiled: an error of the first run.
    compiled: Result<Compiled, RunError>,
}

struct Compiled {
    plan: Plan,
    written: Arc<Written>,
    executors: Spares<Executor>,
}

impl Compiled {
    fn executor(&self) -> Executor {
        Executor::new(self.plan.clone(), Vec::new(), Vec::new()).of_body(Arc::clone(&self.written))
    }
}

impl Body {
    pub(super) fn new(mut graph: Graph) -> Self {
        // What was found around it may have had any name, or one name twice.
        graph.inputs = (0..graph.inputs.len()).map(|i| format!("x{i}")).collect();
        let options = OPTIONS.with_borrow(Clone::clone);
        let compiled = options.optimise(&graph, &[]).map(|optimised| {
            let (plan, written) = (options.plan(&optimised, &[]), Arc::new(Written::new(&graph, &options)));
            Compiled { plan, written, executors: Spares::default() }
        });
        Self { graph, compiled }
    }

    /// An executor, for as many runs as its user likes.
    pub(super) fn hold(&self) -> Result<Taken<'_, Executor>, OpError> {
        match &self.compiled {
            Ok(compiled) => Ok(compiled.executors.take(|| compiled.executor())),
            Err(why) => Err(OpError::Custom { op: "body".to_owned(), reason: why.to_string() }),
        }
    }

    pub(super) fn has_effect(&self) -> bool {
        self.graph.effects().next().is_some()
    }

    /// Dtypes and shapes of its operands.
    pub(super) fn operands(&self) -> Vec<Meta> {
        self.graph.input_metas().into_iter().map(|m| m.expect("bodies keep their operands").clone()).collect()
    }

    /// Dtypes and shapes of its results.
    pub(super) fn results(&self) -> Vec<Meta> {
        self.graph.output_metas().into_iter().cloned().collect()
    }

    /// Its results, op by op; traced operands make it part of the function that is traced.
    pub(super) fn inline(&self, operands: &[&[Tensor]]) -> Vec<Tensor> {
        self.graph.evaluate(&operands.concat()).unwrap_or_else(|e| panic!("{e}"))
    }

    /// Work and traffic of one run.
    pub(super) fn cost(&self) -> Cost {
        self.plan(|plan| plan.steps().fold(Cost::default(), |sum, step| plus(sum, step.cost)))
            .unwrap_or_default()
    }

    /// Its steps under a heading.
    pub(super) fn inside(&self, heading: &str) -> Vec<String> {
        let steps = self.plan(|plan| {
            let steps = plan.steps().flat_map(|step| {
                let inner = step.inside.iter().map(|line| format!("  | {line}")).collect::<Vec<_>>();
                std::iter::once(format!("  {step}")).chain(inner)
            });
            steps.collect::<Vec<_>>()
        });
        std::iter::once(format!("{heading}:")).chain(steps.into_iter().flatten()).collect()
    }

    fn plan<R>(&self, f: impl FnOnce(&Plan) -> R) -> Option<R> {
        Some(f(&self.compiled.as_ref().ok()?.plan))
    }
}

/// The same graph with operand i at `places[i]` among as many as there are kinds; two may come to stand at one place.
pub(super) fn place_operands(graph: &Graph, places: &[usize], kinds: &[Meta]) -> Graph {
    let mut placed = graph.rewrite(|out, mut node| {
        if let Kind::Input(i) = node.kind {
            node.kind = Kind::Input(places[i]);
            if let Some(id) = out.ids().find(|&id| out.node(id).kind == node.kind) {
                return id;
            }
        }
        out.push(node)
    });
    placed.inputs = (0..kinds.len()).map(|i| format!("x{i}")).collect();
    for (i, kind) in kinds.iter().enumerate() {
        placed.input(i, kind);
    }
    placed
}

pub(super) fn require_operands(op: &str, got: &[&Meta], want: &[Meta]) -> Result<(), OpError> {
    match (0..got.len().max(want.len())).find(|&i| got.get(i).copied() != want.get(i)) {
        Some(i) => Err(misfit(op, i)),
        None => Ok(()),
    }
}

pub(super) fn misfit(op: &str, operand: usize) -> OpError {
    let reason = format!("operand {operand} is not what its bodies were traced with");
    OpError::Custom { op: op.to_owned(), reason }
}

pub(super) fn plus(a: Cost, b: Cost) -> Cost {
    Cost { flops: a.flops + b.flops, bytes: a.bytes + b.bytes }
}

pub(super) fn times(cost: Cost, n: usize) -> Cost {
    Cost { flops: cost.flops * n as u64, bytes: cost.bytes * n as u64 }
}

pub(super) fn of_op(error: RunError) -> OpError {
    match error {
        RunError::Op { source, .. } => *source,
        other => unreachable!("operands of a body have the kinds it was traced with: {other}"),
    }
}

/// The gradient of each operand that wants one, `None` where none flows, given those of the results that have one.
pub(super) fn pull_back(
    graph: &Graph,
    operands: &[Tensor],
    dy: &[Option<Tensor>],
    wants: &[bool],
) -> Vec<Option<Tensor>> {
    pull(operands, dy, wants, |x| graph.evaluate(x).unwrap_or_else(|e| panic!("{e}")))
}

/// [`pull_back`] of any function.
pub(super) fn pull(
    operands: &[Tensor],
    dy: &[Option<Tensor>],
    wants: &[bool],
    f: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
) -> Vec<Option<Tensor>> {
    let float: Vec<usize> =
        (0..operands.len()).filter(|&i| wants[i] && operands[i].dtype().is_float()).collect();
    let variables: Vec<Tensor> = float.iter().map(|&i| operands[i].clone()).collect();
    let (_, pull) = vjp(
        |v| {
            let mut x = operands.to_vec();
            float.iter().zip(v).for_each(|(&i, v)| x[i] = v.clone());
            let wanted = f(&x).into_iter().zip(dy).filter(|(_, dy)| dy.is_some());
            wanted.map(|(y, _)| y).collect()
        },
        &variables,
    );
    let given: Vec<Tensor> = dy.iter().flatten().cloned().collect();
    let found = pull.call(&given).unwrap_or_else(|e| panic!("{e}"));
    let mut grads = vec![None; operands.len()];
    float.into_iter().zip(found).for_each(|(i, g)| grads[i] = g);
    grads
}

/// Nothing, as a gradient: -0 is what may be added to anything, also to -0, without a trace.
pub(super) fn nothing(kind: &Meta) -> Tensor {
    Tensor::scalar(-0.0f64).to_dtype(kind.dtype).broadcast_to(&kind.shape)
}
