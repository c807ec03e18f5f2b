//! Traces: what a function does to tensors that have no values yet, written down in order.
//!
//! [`record`] runs a function on traced tensors. [`apply`](crate::apply) notes each op in the trace
//! that its operands carry; a ready tensor that meets a traced one enters as a captured value, bound
//! by identity; a [`Param`] that is read or set while a trace runs on this thread enters as state.
//! Gradient rules are tensor code, so derivatives are recorded like everything else.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::panic::Location;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::error::{OpError, fail, or_fail};
use crate::meta::Meta;
use crate::ops::{Op, StopGradient};
use crate::param::Param;
use crate::rule::Rule;
use crate::switch::Switch;
use crate::tape;
use crate::tensor::Tensor;

/// What a traced value is.
#[derive(Clone)]
pub enum Source {
    /// An operand of the function, by position.
    Input(usize),
    /// The value of a parameter when the function begins.
    Param(Param),
    /// A tensor that the function found around it: ready, or of a trace that encloses this one.
    Captured(Tensor),
    /// The result of an op on values recorded before.
    Op(Op, SmallVec<[u32; 4]>),
    /// Where the gradients of a function with a backward of its own come together; operands as [`Rule`] says.
    Rule(Arc<Rule>, SmallVec<[u32; 4]>),
    /// One of the float results of such a function: its value, and the value of its [`Source::Rule`].
    Ruled(Arc<Rule>, usize, [u32; 2]),
}

/// One value of a trace.
#[derive(Clone)]
pub struct Recorded {
    /// How it comes about.
    pub source: Source,
    /// Dtype and shape.
    pub meta: Meta,
    /// The user's line.
    pub at: &'static Location<'static>,
    /// Which recomputation it belongs to; 0 is the ordinary program. Equal values of different
    /// regions are meant to be computed twice.
    pub region: u32,
}

/// A parameter that the function read or wrote.
#[derive(Clone)]
pub struct ParamUse {
    /// The parameter.
    pub param: Param,
    /// Its value at the beginning.
    pub read: u32,
    /// Its value at the end, if it was set.
    pub write: Option<u32>,
}

/// A finished trace. Values are numbered in the order in which they were made.
#[derive(Clone)]
pub struct Recording {
    /// All values.
    pub values: Vec<Recorded>,
    /// The parameters in order of first use.
    pub params: Vec<ParamUse>,
    /// The results.
    pub outputs: Vec<u32>,
    /// What `backward` left in parameters.
    pub grads: Vec<(Param, u32)>,
    /// The switches that the function looked at, and how they stood.
    pub switches: Vec<(Switch, bool)>,
}

/// A value under way: what a traced tensor holds instead of memory.
#[derive(Clone)]
pub(crate) struct Symbol {
    trace: Arc<Trace>,
    value: u32,
    /// The line that made it, kept here since the trace hands its values over when it ends.
    at: &'static Location<'static>,
}

#[derive(Default)]
pub(crate) struct Trace {
    building: Mutex<Building>,
    /// Set when the function has ended, by return or panic: nothing can be recorded any more.
    is_over: AtomicBool,
}

#[derive(Default)]
struct Building {
    values: Vec<Recorded>,
    /// Captured tensors; the layout tells views of one memory apart.
    captured: HashMap<Found, SmallVec<[u32; 1]>>,
    /// Float values made while nothing is recorded (`no_grad`), which eager code would give no history: gradients stop at
    /// them. With each the mark that says so, once somebody reads it who is recorded.
    unrecorded: HashMap<u32, Option<u32>>,
    region: u32,
    n_regions: u32,
}

/// What a captured tensor is known by. Several traces may enclose one, and each counts its values from 0.
#[derive(PartialEq, Eq, Hash)]
enum Found {
    /// Ready: the address of its memory.
    Ready(usize),
    /// A value of an enclosing trace: the address of that trace, which its values keep alive, and the number.
    Around(usize, u32),
}

impl Found {
    fn of(t: &Tensor) -> Self {
        match t.symbol() {
            Some(symbol) => Found::Around(Arc::as_ptr(&symbol.trace).addr(), symbol.value),
            None => Found::Ready(t.view().address().addr()),
        }
    }
}

/// Whether gradients flow from both into the same: `x` and `x.stop_gradient()` are two operands of a body.
fn same_history(a: &Tensor, b: &Tensor) -> bool {
    match (a.history(), b.history()) {
        (Some(a), Some(b)) => Arc::ptr_eq(&a.node, &b.node) && a.output == b.output,
        (a, b) => a.is_none() && b.is_none(),
    }
}

/// The trace that runs on this thread, with the present values of its parameters.
struct Running {
    trace: Arc<Trace>,
    params: Vec<(Param, Tensor, u32, bool)>,
    index: HashMap<usize, usize>,
    switches: Vec<(Switch, bool)>,
}

thread_local! {
    static IS_RUNNING: Cell<bool> = const { Cell::new(false) };
    static RUNNING: RefCell<Vec<Running>> = const { RefCell::new(Vec::new()) };
}

/// Runs `f` on traced tensors of these kinds and returns what it did. Params that it sets keep their
/// values: setting is part of what was recorded.
///
/// ```
/// use thalweg_core::DType;
/// use thalweg_tensor::{Meta, trace};
/// let recording = trace::record(&[Meta::new(DType::F32, [2, 3])], |x| vec![x[0].exp().sum(())]);
/// assert_eq!(recording.values.len(), 3); // the operand, exp, sum
/// ```
#[track_caller]
pub fn record(inputs: &[Meta], f: impl FnOnce(&[Tensor]) -> Vec<Tensor>) -> Recording {
    let at = Location::caller();
    let trace = Arc::<Trace>::default();
    let inputs: Vec<Tensor> =
        inputs.iter().enumerate().map(|(i, meta)| trace.push(Source::Input(i), meta.clone(), at)).collect();
    let guard = Guard::enter(&trace);
    let outputs = f(&inputs);
    let outputs = or_fail(outputs.iter().map(|y| Ok(trace.marked(trace.value_of(y, at)?, at))).collect());
    let (params, switches) = guard.leave();
    let left = params.iter().filter_map(|(param, value, ..)| Some((param.clone(), value.leaf_grad()?)));
    let grads: Vec<(Param, u32)> =
        or_fail(left.map(|(param, grad)| Ok((param, trace.value_of(&grad, at)?))).collect());
    if let Some((param, _)) = grads.first().filter(|_| is_recording()) {
        panic!(
            "backward: the body of a decision or loop leaves a gradient in param `{}`; use `grad`, or call `backward` outside it",
            param.name()
        );
    }
    let params = params.into_iter().map(|(param, value, read, written)| {
        let write = written.then(|| trace.value_of(&value, at)).transpose()?;
        Ok(ParamUse { param, read, write })
    });
    let params = or_fail(params.collect());
    trace.is_over.store(true, Ordering::Relaxed);
    let values = std::mem::take(&mut trace.lock().values);
    Recording { values, params, outputs, grads, switches }
}

/// Whether code on this thread is being traced.
pub fn is_recording() -> bool {
    IS_RUNNING.get()
}

impl Trace {
    fn lock(&self) -> MutexGuard<'_, Building> {
        self.building.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn push(self: &Arc<Self>, source: Source, meta: Meta, at: &'static Location<'static>) -> Tensor {
        let value = self.lock().push(source, meta.clone(), at);
        Tensor::traced(meta, Symbol { trace: Arc::clone(self), value, at })
    }

    /// What stands for a value that is read by somebody who is recorded.
    fn marked(&self, value: u32, at: &'static Location<'static>) -> u32 {
        let mut building = self.lock();
        match building.unrecorded.get(&value) {
            None => value,
            Some(&Some(mark)) => mark,
            Some(None) => {
                let meta = building.values[value as usize].meta.clone();
                let mark =
                    building.push(Source::Op(StopGradient.into(), smallvec::smallvec![value]), meta, at);
                building.unrecorded.insert(value, Some(mark));
                mark
            }
        }
    }

    /// Whether gradients stop at a value anyway.
    fn is_stopped(&self, value: u32) -> bool {
        let building = self.lock();
        let source = &building.values[value as usize].source;
        building.unrecorded.contains_key(&value) || matches!(source, Source::Op(Op::StopGradient(_), _))
    }

    /// The number of a tensor in this trace; a ready tensor is captured, one of another trace refused.
    fn value_of(self: &Arc<Self>, t: &Tensor, at: &'static Location<'static>) -> Result<u32, OpError> {
        match t.symbol() {
            Some(symbol) if Arc::ptr_eq(&symbol.trace, self) => Ok(symbol.value),
            // A function inside a traced function sees the values around it.
            Some(symbol) if is_running(&symbol.trace) => Ok(self.capture(t, at)),
            Some(symbol) => Err(symbol.foreign("record", at)),
            None => Ok(self.capture(t, at)),
        }
    }

    fn capture(&self, t: &Tensor, at: &'static Location<'static>) -> u32 {
        let mut building = self.lock();
        let Building { values, captured, region, .. } = &mut *building;
        let same = captured.entry(Found::of(t)).or_default();
        let known = same.iter().find(|&&v| match &values[v as usize].source {
            Source::Captured(c) => c.meta() == t.meta() && c.layout() == t.layout() && same_history(c, t),
            _ => false,
        });
        if let Some(&value) = known {
            return value;
        }
        let value = values.len() as u32;
        let source = Source::Captured(t.clone());
        values.push(Recorded { source, meta: t.meta().clone(), at, region: *region });
        same.push(value);
        value
    }
}

impl Building {
    fn push(&mut self, source: Source, meta: Meta, at: &'static Location<'static>) -> u32 {
        self.values.push(Recorded { source, meta, at, region: self.region });
        self.values.len() as u32 - 1
    }
}

impl Symbol {
    fn is_over(&self) -> bool {
        self.trace.is_over.load(Ordering::Relaxed)
    }

    /// Why the value cannot be read at a line.
    #[cold]
    pub(crate) fn unread(&self, op: &'static str, at: &'static Location<'static>) -> OpError {
        match self.is_over() {
            true => OpError::Leaked { op, made: self.at, at },
            false => OpError::TracedRead { made: self.at, at },
        }
    }

    /// Why the value cannot decide a shape at a line.
    #[cold]
    pub(crate) fn shapeless(&self, op: &'static str, at: &'static Location<'static>) -> OpError {
        match self.is_over() {
            true => OpError::Leaked { op, made: self.at, at },
            false => OpError::DataShape { op, made: self.at, at },
        }
    }

    /// Why the value can be no part of the function that uses it at a line.
    #[cold]
    fn foreign(&self, op: &'static str, at: &'static Location<'static>) -> OpError {
        match self.is_over() {
            true => OpError::Leaked { op, made: self.at, at },
            false => OpError::MixedTraces { op, made: self.at, at, other: None },
        }
    }
}

/// Notes an op on operands of which at least one is traced.
pub(crate) fn note(
    op: Op,
    inputs: &[&Tensor],
    meta: Meta,
    at: &'static Location<'static>,
) -> Result<Tensor, OpError> {
    note_as(op.name(), inputs, meta, at, |operands| Source::Op(op, operands))
}

/// Notes a value made of operands of which at least one is traced; `name` is for messages.
pub(crate) fn note_as(
    name: &'static str,
    inputs: &[&Tensor],
    meta: Meta,
    at: &'static Location<'static>,
    source: impl FnOnce(SmallVec<[u32; 4]>) -> Source,
) -> Result<Tensor, OpError> {
    let symbols = || inputs.iter().filter_map(|t| t.symbol());
    // The innermost trace that an operand belongs to; those around it lend their values.
    let first = symbols().max_by_key(|s| depth(&s.trace)).expect("called with a traced operand");
    if let Some(leaked) = symbols().find(|s| s.is_over()) {
        return Err(leaked.foreign(name, at));
    }
    let foreign = |s: &&Symbol| !Arc::ptr_eq(&s.trace, &first.trace) && !is_running(&s.trace);
    if let Some(other) = symbols().find(foreign) {
        return Err(OpError::MixedTraces { op: name, made: other.at, at, other: Some(first.at) });
    }
    let trace = innermost(&first.trace);
    let is_recorded = tape::records(0);
    let operand = |t: &&Tensor| {
        let value = trace.value_of(t, at)?;
        Ok(if is_recorded { trace.marked(value, at) } else { value })
    };
    let operands = inputs.iter().map(operand).collect::<Result<_, _>>()?;
    let is_float = meta.dtype.is_float();
    let result = trace.push(source(operands), meta, at);
    if is_float && !is_recorded {
        let value = result.symbol().expect("just traced").value;
        trace.lock().unrecorded.insert(value, None);
    }
    Ok(result)
}

/// The same value, through which no gradient flows: noted, since a graph has no histories that could be forgotten.
pub(crate) fn stop(t: &Tensor, at: &'static Location<'static>) -> Tensor {
    let symbol = t.symbol().expect("called with a traced tensor");
    let plain = t.without_history();
    let is_known =
        || Arc::ptr_eq(&innermost(&symbol.trace), &symbol.trace) && symbol.trace.is_stopped(symbol.value);
    if symbol.is_over() || !t.dtype().is_float() || is_known() {
        return plain;
    }
    or_fail(note(StopGradient.into(), &[&plain], t.meta().clone(), at))
}

/// How deep a trace lies among those that run on this thread; 0 for one that does not run.
fn depth(trace: &Arc<Trace>) -> usize {
    RUNNING.with_borrow(|r| r.iter().rposition(|r| Arc::ptr_eq(&r.trace, trace)).map_or(0, |i| i + 1))
}

fn is_running(trace: &Arc<Trace>) -> bool {
    depth(trace) > 0
}

/// The trace that runs innermost, if `trace` encloses it: an op on values from around belongs to the
/// function that applies it.
fn innermost(trace: &Arc<Trace>) -> Arc<Trace> {
    match is_running(trace) {
        true => RUNNING.with_borrow(|r| Arc::clone(&r.last().expect("one runs").trace)),
        false => Arc::clone(trace),
    }
}

/// The present value of a parameter, if a trace runs on this thread; it is read at `at`.
pub(crate) fn param_value(param: &Param, at: &'static Location<'static>) -> Option<Tensor> {
    if !IS_RUNNING.get() {
        return None;
    }
    RUNNING.with_borrow_mut(|running| {
        let running = running.last_mut()?;
        let i = running.entry(param, at);
        Some(running.params[i].1.clone())
    })
}

/// Sets a parameter for the rest of the trace that runs on this thread. `false`: none runs.
#[track_caller]
pub(crate) fn set_param(param: &Param, value: &Tensor) -> bool {
    if !IS_RUNNING.get() {
        return false;
    }
    let at = Location::caller();
    if let Some(leaked) = value.symbol().filter(|s| s.is_over()) {
        fail(leaked.foreign("set", at));
    }
    // Whoever reads the parameter from now on reads a variable of its own, also if gradients do not reach the value anyway.
    let value = &match value.is_traced() && value.dtype().is_float() {
        true => or_fail(note(
            StopGradient.into(),
            &[&value.without_history()],
            value.meta().clone(),
            tape::line(at),
        )),
        false => value.without_history(),
    };
    RUNNING.with_borrow_mut(|running| {
        let Some(running) = running.last_mut() else { return false };
        let i = running.entry(param, tape::line(at));
        running.params[i].1 = param.own(value);
        running.params[i].3 = true;
        true
    })
}

/// Runs `f` as a recomputation: inside a trace, what it records is not merged with equal values
/// recorded outside.
pub(crate) fn recomputing<R>(like: &[Tensor], f: impl FnOnce() -> R) -> R {
    let Some(trace) = like.iter().find_map(|t| t.symbol()).map(|s| Arc::clone(&s.trace)) else { return f() };
    let outer = {
        let mut building = trace.lock();
        building.n_regions += 1;
        let fresh = building.n_regions;
        std::mem::replace(&mut building.region, fresh)
    };
    let result = f();
    trace.lock().region = outer;
    result
}

impl Running {
    fn entry(&mut self, param: &Param, at: &'static Location<'static>) -> usize {
        let Self { trace, params, index, .. } = self;
        *index.entry(param.id()).or_insert_with(|| {
            let read = trace.push(Source::Param(param.clone()), param.meta(), at);
            let value = read.symbol().expect("just traced").value;
            params.push((param.clone(), param.own(&read), value, false));
            params.len() - 1
        })
    }
}

/// Notes that the function under way depends on a switch.
#[inline]
pub(crate) fn looked_at(switch: &Switch, on: bool) {
    if IS_RUNNING.get() {
        RUNNING.with_borrow_mut(|r| {
            // Those around the innermost depend on it too.
            for running in r.iter_mut().filter(|r| !r.switches.iter().any(|(s, _)| s.is(switch))) {
                running.switches.push((switch.clone(), on));
            }
        });
    }
}

/// Marks a trace as running; also a panic ends it.
struct Guard;

impl Guard {
    fn enter(trace: &Arc<Trace>) -> Self {
        let running = Running {
            trace: Arc::clone(trace),
            params: Vec::new(),
            index: HashMap::new(),
            switches: Vec::new(),
        };
        RUNNING.with_borrow_mut(|r| r.push(running));
        IS_RUNNING.set(true);
        Guard
    }

    #[allow(clippy::type_complexity)] // the fields of `Running`, once it is over
    fn leave(self) -> (Vec<(Param, Tensor, u32, bool)>, Vec<(Switch, bool)>) {
        let running = Self::pop();
        std::mem::forget(self);
        running.map(|r| (r.params, r.switches)).unwrap_or_default()
    }

    fn pop() -> Option<Running> {
        RUNNING.with_borrow_mut(|r| {
            let last = r.pop();
            IS_RUNNING.set(!r.is_empty());
            last
        })
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if let Some(running) = Self::pop() {
            running.trace.is_over.store(true, Ordering::Relaxed);
        }
    }
}
