//! Bodies of decisions and loops while somebody looks into the function around them: they run op by op, as they were
//! written, and what is wrong inside is told.

use std::cell::{Cell, RefCell};

use thalweg_core::{Layout, View};
use thalweg_graph::{Graph, NodeId};
use thalweg_tensor::Tensor;

use crate::debug::{Debugger, not_finite, of_op};
use crate::error::RunError;
use crate::executor::{Executor, dense_copy};
use crate::jit::JitOptions;
use crate::probe;

/// A function before any pass, and how it was compiled.
pub(crate) struct Written {
    pub graph: Graph,
    pub options: JitOptions,
    /// Whether it computes values again that were computed before: probes then do not print.
    pub is_again: bool,
}

impl Written {
    pub fn new(graph: &Graph, options: &JitOptions) -> Self {
        Self { graph: graph.clone(), options: options.clone(), is_again: IS_AGAIN.get() }
    }
}

/// Runs `f`; the bodies that it traces compute again what was computed before, for a gradient.
pub(crate) fn again<R>(f: impl FnOnce() -> R) -> R {
    probe::while_set(&IS_AGAIN, f)
}

/// What one looks for.
#[derive(Clone, Copy)]
pub(crate) enum Look {
    /// The values, op by op.
    Values,
    /// The first value that is not finite.
    NotFinite,
    /// The first step that differs from its ops by more than this share.
    Steps(f64),
}

thread_local! {
    static IS_AGAIN: Cell<bool> = const { Cell::new(false) };
    static LOOK: Cell<Option<Look>> = const { Cell::new(None) };
    /// What was found first.
    static FOUND: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `f`, in which bodies are looked into and probes do not print; also tells what was found in them.
pub(crate) fn looking<R>(look: Look, f: impl FnOnce() -> R) -> (R, Option<String>) {
    let outer = FOUND.take();
    let result = with(Some(look), || probe::quietly(f));
    (result, FOUND.replace(outer))
}

/// Runs `f`, in which bodies run as they were compiled.
pub(crate) fn compiled<R>(f: impl FnOnce() -> R) -> R {
    with(None, f)
}

/// Whether bodies are looked into.
pub(crate) fn is_on() -> bool {
    LOOK.get().is_some()
}

fn with<R>(look: Option<Look>, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<Look>);
    impl Drop for Restore {
        fn drop(&mut self) {
            LOOK.set(self.0);
        }
    }
    let _restore = Restore(LOOK.replace(look));
    f()
}

fn note(found: impl FnOnce() -> Option<String>) {
    if FOUND.with_borrow(Option::is_none)
        && let Some(found) = found()
    {
        FOUND.set(Some(found));
    }
}

/// Runs a body op by op, as it was written.
pub(crate) fn body(
    executor: &mut Executor,
    written: &std::sync::Arc<Written>,
    inputs: &[View<'_>],
) -> Result<Vec<Tensor>, RunError> {
    let inputs: Vec<Tensor> = inputs.iter().map(dense_copy).collect();
    let look = LOOK.get();
    if let (Some(Look::Steps(rtol)), true) = (look, FOUND.with_borrow(Option::is_none)) {
        let found = Debugger::new(executor, written.clone(), inputs.clone())?.verify(rtol)?;
        note(|| found.map(|found| found.to_string()));
    }
    let graph = &written.graph;
    let each = |id: NodeId, value: &Tensor| {
        if matches!(look, Some(Look::NotFinite)) {
            note(|| not_finite_at(graph, id, value));
        }
    };
    let values = graph.values_each(&inputs, &[], &[], each).map_err(of_op)?;
    Ok(graph.outputs.iter().map(|(_, id)| dense_copy(&values[id.index()].view())).collect())
}

/// What is not finite in the value of a node, with its op and line. Leaves and views compute nothing.
pub(crate) fn not_finite_at(graph: &Graph, id: NodeId, value: &Tensor) -> Option<String> {
    let (op, node) = (graph.op(id)?, graph.node(id));
    let is_view = node.inputs.first().is_some_and(|&x| {
        let operand = Layout::contiguous(graph.node(x).meta.shape.clone());
        op.view(&operand, &node.meta.shape).is_some()
    });
    let what = not_finite(value).filter(|_| !is_view)?;
    Some(format!("{}: {what}", named(graph, id)))
}

/// An op with its line.
pub(crate) fn named(graph: &Graph, id: NodeId) -> String {
    let op = graph.op(id).map_or("a leaf", |op| op.label());
    graph.node(id).at.map_or_else(|| op.to_owned(), |at| format!("{op} at {at}"))
}
