//! Applying an op: the one place where it is decided how an op is run, now or as part of a trace.

use std::panic::Location;
use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_core::{Buffer, DType, View, ViewMut};

use crate::error::{OpError, fail};
use crate::meta::Meta;
use crate::meter;
use crate::ops::Op;
use crate::tape::{self, History, Kept, Kind, Node};
use crate::tensor::Tensor;
use crate::trace;

/// Runs an op on its operands, and records it when a gradient may be asked for later.
///
/// This is the fallible core under every method of [`Tensor`]: it checks everything before it
/// computes anything.
///
/// ```
/// use thalweg_tensor::{Tensor, apply, ops::Add};
/// let (a, b) = (Tensor::zeros([2, 3], thalweg_core::DType::F32), Tensor::zeros([2, 4], thalweg_core::DType::F32));
/// let error = apply(Add, &[&a, &b]).unwrap_err();
/// assert!(error.to_string().starts_with("add: shapes [2, 3] and [2, 4]"));
/// ```
#[track_caller]
pub fn apply(op: impl Into<Op>, inputs: &[&Tensor]) -> Result<Tensor, OpError> {
    apply_op(op.into(), inputs, Location::caller())
}

/// [`apply`], panicking at the caller's line.
#[inline]
#[track_caller]
pub(crate) fn run(op: impl Into<Op>, inputs: &[&Tensor]) -> Tensor {
    match apply_op(op.into(), inputs, Location::caller()) {
        Ok(tensor) => tensor,
        Err(error) => fail(error),
    }
}

/// Like [`run`], but the result may take over the memory of `left` when nobody else sees it.
#[track_caller]
pub(crate) fn run_owned(op: impl Into<Op>, left: Tensor, right: Option<&Tensor>) -> Tensor {
    let op = op.into();
    let at = Location::caller();
    let tracked = wanted(std::iter::once(&left).chain(right)).is_some();
    let traced = left.is_traced() || right.is_some_and(Tensor::is_traced);
    let reusable =
        !tracked && !traced && (op.reuses() & 1) != 0 && right.is_none_or(|r| r.shape() == left.shape());
    let result = if reusable {
        overwrite(op, left, right, at)
    } else {
        match right {
            Some(right) => apply_op(op, &[&left, right], at),
            None => apply_op(op, &[&left], at),
        }
    };
    match result {
        Ok(tensor) => tensor,
        Err(error) => fail(error),
    }
}

fn overwrite(
    op: Op,
    left: Tensor,
    right: Option<&Tensor>,
    at: &'static Location<'static>,
) -> Result<Tensor, OpError> {
    let meta = match right {
        Some(right) => op.infer(&[left.meta(), right.meta()])?,
        None => op.infer(&[left.meta()])?,
    };
    if meta != *left.meta() {
        return with_left(op, left, right, at);
    }
    match left.into_unique_buffer() {
        Ok(mut buffer) => {
            let view = right.map(Tensor::view);
            if op.overwrite(view, &mut ViewMut::new(&mut buffer, &meta.shape)) {
                match right {
                    Some(right) => meter::count(&op, &[&meta, right.meta()], &meta),
                    None => meter::count(&op, &[&meta], &meta),
                }
                return Ok(Tensor::dense(meta, buffer, None));
            }
            with_left(op, Tensor::dense(meta, buffer, None), right, at)
        }
        Err(left) => with_left(op, left, right, at),
    }
}

fn with_left(
    op: Op,
    left: Tensor,
    right: Option<&Tensor>,
    at: &'static Location<'static>,
) -> Result<Tensor, OpError> {
    match right {
        Some(right) => apply_op(op, &[&left, right], at),
        None => apply_op(op, &[&left], at),
    }
}

fn apply_op(op: Op, inputs: &[&Tensor], at: &'static Location<'static>) -> Result<Tensor, OpError> {
    let meta = infer(&op, inputs)?;
    let wanted = wanted(inputs.iter().copied());
    if inputs.iter().any(|t| t.is_traced()) {
        let value = trace::note(op.clone(), inputs, meta, tape::line(at))?;
        return match wanted {
            Some(level) if value.dtype().is_float() => Ok(record(op, inputs, value, level, at)),
            _ => Ok(value),
        };
    }
    let viewed = match inputs {
        [x] => op.view(x.layout(), &meta.shape).map(|layout| x.with_layout(layout, None)),
        _ => None,
    };
    let value = match viewed {
        Some(value) => value,
        None => compute(&op, inputs, meta)?,
    };
    match wanted {
        Some(level) if value.dtype().is_float() => Ok(record(op, inputs, value, level, at)),
        _ => Ok(value),
    }
}

/// Collecting into a list costs as much as inferring, so the usual arities go without.
#[inline]
fn infer(op: &Op, inputs: &[&Tensor]) -> Result<Meta, OpError> {
    let with = |metas: &[&Meta]| {
        let result = op.infer(metas)?;
        meter::count(op, metas, &result);
        Ok(result)
    };
    match inputs {
        [a] => with(&[a.meta()]),
        [a, b] => with(&[a.meta(), b.meta()]),
        _ => with(&inputs.iter().map(|t| t.meta()).collect::<SmallVec<[&Meta; 8]>>()),
    }
}

/// The lowest level among the operands, if it is one to be recorded.
#[inline]
fn wanted<'a>(inputs: impl Iterator<Item = &'a Tensor>) -> Option<u32> {
    inputs.filter_map(Tensor::history).map(|h| h.node.level).min().filter(|&level| tape::records(level))
}

fn compute(op: &Op, inputs: &[&Tensor], meta: Meta) -> Result<Tensor, OpError> {
    match inputs {
        [a] => compute_views(op, &[a.view()], meta),
        [a, b] => compute_views(op, &[a.view(), b.view()], meta),
        _ => compute_views(op, &inputs.iter().map(|t| t.view()).collect::<SmallVec<[View<'_>; 8]>>(), meta),
    }
}

fn compute_views(op: &Op, inputs: &[View<'_>], meta: Meta) -> Result<Tensor, OpError> {
    let n = meta.shape.checked_numel().map_err(|source| OpError::Shape { op: op.name(), source })?;
    let mut buffer = Buffer::scratch(meta.dtype, n);
    let mut out = ViewMut::new(&mut buffer, &meta.shape);
    if !op.fast(inputs, &mut out) {
        op.eval(inputs, &mut out)?;
    }
    Ok(Tensor::dense(meta, buffer, None))
}

/// An elementwise op on a tensor and a number of its dtype. The number goes to the kernel as it is;
/// the constant tensor that the op formally takes is made only where something must remember it.
#[track_caller]
pub(crate) fn run_with_number(op: Op, x: &Tensor, number: &Tensor, side: Side) -> Tensor {
    let direct = matches!(x.dtype(), DType::F32 | DType::F64) && x.is_contiguous() && op.takes_numbers();
    let (a, b) = match side {
        Side::Left => (number, x),
        Side::Right => (x, number),
    };
    if !direct || x.is_traced() || wanted(std::iter::once(x)).is_some() {
        let spread =
            |t: &Tensor| if t.shape() == x.shape() { t.clone() } else { number.spread_to(x.shape()) };
        return run(op, &[&spread(a), &spread(b)]);
    }
    let result = infer(&op, &[x, x]).and_then(|meta| compute_views(&op, &[a.view(), b.view()], meta));
    match result {
        Ok(y) => y,
        Err(error) => fail(error),
    }
}

/// Where the number stands.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Left,
    Right,
}

fn record(op: Op, inputs: &[&Tensor], value: Tensor, level: u32, at: &'static Location<'static>) -> Tensor {
    let keep = op.keep();
    let kept = Kept {
        inputs: inputs.iter().enumerate().map(|(i, t)| keep.value(i).then(|| (*t).clone())).collect(),
        metas: if keep.metas() { inputs.iter().map(|t| t.meta().clone()).collect() } else { SmallVec::new() },
        output: keep.output().then(|| value.clone()),
    };
    let edges = inputs.iter().map(|t| t.history().filter(|h| tape::records(h.node.level)).cloned()).collect();
    let node = Node { id: tape::next_id(), level, edges, kind: Kind::Op { op, kept }, at: tape::line(at) };
    value.into_recorded(History { node: Arc::new(node), output: 0 })
}
