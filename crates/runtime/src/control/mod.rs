//! Decisions and loops that depend on values: [`cond`], [`while_loop`], [`scan`].
//!
//! Outside a trace they are plain Rust. Inside, each body is traced by itself and becomes part of one
//! op, which runs it as often as the values say. Bodies see everything around them, tensors and
//! parameters; what they see becomes an operand of the op, so that gradients reach it. Results of
//! several tensors travel through the one result of the op end to end. Bodies are compiled with the options
//! of the `jit` that traces them.

mod body;
mod cond;
mod loop_grad;
mod loops;
mod packing;
mod spares;
mod text;

use std::sync::Arc;

use thalweg_core::DType;
use thalweg_graph::{Graph, Kind, NodeId};
use thalweg_tensor::ops::{Custom, CustomOp, Op};
use thalweg_tensor::{Meta, Param, Tensor, apply, with_rule, without_derivative};

use crate::look;
use crate::tree::Tree;
use packing::Packing;

pub(crate) use body::BodyOptions;
pub use cond::cond;
pub use loops::{scan, while_loop};
pub use text::parse_graph;

/// An op of several results.
trait Several: CustomOp + Sized {
    /// How they are one.
    fn packing(&self) -> &Packing;

    /// The gradient of each operand that wants one, `None` where none flows, given those of the results that have one.
    fn pull(&self, x: &[Tensor], dy: &[Option<Tensor>], wants: &[bool]) -> Vec<Option<Tensor>>;

    /// [`CustomOp::vjp`], where the gradients of the results come as one and nobody knows which of them are wanted: in
    /// bodies of bodies, and in graphs.
    fn pull_packed(&self, x: &[Tensor], dy: &Tensor) -> Vec<Option<Tensor>> {
        let parts = self.packing().unpack(dy).into_iter();
        let dy: Vec<Option<Tensor>> = parts.map(|d| d.dtype().is_float().then_some(d)).collect();
        let wants: Vec<bool> = x.iter().map(Tensor::is_tracked).collect();
        look::again(|| self.pull(x, &dy, &wants))
    }
}

/// Applies an op of several results.
#[track_caller]
fn results_of(op: impl Several, operands: &[Tensor]) -> Vec<Tensor> {
    let (op, inputs) = (Arc::new(op), operands.iter().collect::<Vec<_>>());
    let packed = match apply(Op::Custom(Custom::shared(Arc::clone(&op))), &inputs) {
        Ok(packed) => packed,
        Err(error) => panic!("{error}"),
    };
    // Gradients go from the results to the operands at once, not through the one that they travel in.
    let parts = op.packing().unpack(&packed.without_history());
    let kept = operands.to_vec();
    with_rule(parts, &inputs, move |dy, wants| {
        let wants: Vec<bool> = (0..kept.len()).map(wants).collect();
        look::again(|| op.pull(&kept, dy, &wants))
    })
}

/// Why a gradient of a parameter that a body sets is refused; see [`after_set`].
const READ_AGAIN: &str = "its body sets a parameter and reads it again, so that gradients of it are known inside the body alone; take them \
     there (`grad`), or use the value that was set instead of reading it";

/// Sets parameters that a body has set to `values`, the nodes `set` of its graph. Results that read one again after it
/// was set depend on what it is now, which is no operand of the op: eager code has a gradient there, so asking for it is an error.
#[track_caller]
fn after_set(
    op: &'static str,
    results: Vec<Tensor>,
    written: &[Param],
    values: Vec<Tensor>,
    read_again: impl Fn(usize) -> bool,
) -> Vec<Tensor> {
    written.iter().zip(values).for_each(|(param, value)| param.set(value));
    let again = (0..written.len()).filter(|&i| written[i].is_trainable() && read_again(i));
    let mut unknown = Vec::new();
    for now in again.map(|i| written[i].get()) {
        unknown.extend(without_derivative(op, READ_AGAIN, vec![now.without_history()], &[now]));
    }
    if unknown.is_empty() {
        return results;
    }
    let mark = |result: Tensor| {
        let operands: Vec<&Tensor> = std::iter::once(&result).chain(&unknown).collect();
        let kinds = metas(&unknown);
        let rule = move |dy: &[Option<Tensor>], wants: &dyn Fn(usize) -> bool| {
            let asked =
                kinds.iter().enumerate().map(|(i, m)| wants(i + 1).then(|| Tensor::zeros(&m.shape, m.dtype)));
            std::iter::once(dy[0].clone()).chain(asked).collect()
        };
        with_rule(vec![result.clone()], &operands, rule).remove(0)
    };
    results.into_iter().map(mark).collect()
}

/// Whether a gradient of these nodes reaches another one.
fn reaches(graph: &Graph, from: &[NodeId], to: NodeId) -> bool {
    let mut seen = vec![false; graph.nodes().len()];
    let mut stack = from.to_vec();
    while let Some(id) = stack.pop() {
        if id == to {
            return true;
        }
        let (node, is_new) = (graph.node(id), !std::mem::replace(&mut seen[id.index()], true));
        if is_new && node.meta.dtype.is_float() && !matches!(node.kind, Kind::Op(Op::StopGradient(_))) {
            stack.extend(&node.inputs);
        }
    }
    false
}

fn tensors<T: Tree>(tree: &T) -> Vec<Tensor> {
    let mut list = Vec::new();
    tree.visit(&mut |t| list.push(t.clone()));
    list
}

fn with_tensors<T: Tree>(tree: &T, tensors: &[Tensor]) -> T {
    let mut tensors = tensors.iter();
    tree.map(&mut |_| tensors.next().expect("one tensor per place").clone())
}

fn metas(tensors: &[Tensor]) -> Vec<Meta> {
    tensors.iter().map(|t| t.meta().clone()).collect()
}

/// A tree without what its tensors are, to compare its structure and what it holds beside tensors.
fn skeleton<T: Tree>(tree: &T) -> T {
    let nothing = Tensor::scalar(false);
    tree.map(&mut |_| nothing.clone())
}

/// What decides is one `bool`.
#[track_caller]
fn require_bool(op: &str, condition: &Meta) {
    assert!(
        condition.dtype == DType::Bool && condition.numel() == 1,
        "{op}: the condition is {condition}, not a single bool (compare, or reduce with `all` or `any`)"
    );
}
