//! Replays a plan: binds operands, parameters and results to the plan's memory and runs the steps.
#![allow(unsafe_code, reason = "values of a plan are cut from one arena; see the proof at `Executor`")]

use std::ops::{Deref, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use smallvec::SmallVec;
use thalweg_core::{Buffer, DType, Layout, Shape, Span, SpanMut, View, ViewMut};
use thalweg_kernels::gemm::Pieces;
use thalweg_kernels::scratch::Scratch;
use thalweg_kernels::threads::parallel;
use thalweg_tensor::ops::{Op, Reshape};
use thalweg_tensor::param::{ParamRead, ParamWrite};
use thalweg_tensor::{Meta, OpError, Param, Tensor};

use crate::error::RunError;
use crate::look::{self, Written};
use crate::plan::{Action, Home, MAX_OPERANDS, Plan, Pool, Ref, Step, Storage, Then};
use crate::probe;
use crate::program::{self, Memory};

/// Operands that are seen without scratch memory.
const FEW: usize = 8;

/// A plan with its memory, ready to run again and again.
///
/// Why its views are sound. Storages are alive from the step that writes them to the last that reads
/// them, and the planner gives overlapping memory only to storages that are never alive at once
/// (tested in `arena`), or to a result that takes over an operand, where the step is told so: a tile
/// program reads such an operand into registers first, `Action::Overwrite` reads it through the one
/// mutable view. Steps of one batch touch none of each other's memory (`concurrent`). So during a step its results overlap nothing else that is read. Operands, captured
/// tensors and literals are held while a run lasts; parameters are locked, those that are written for
/// this executor alone; result tensors are used only while nobody else holds them.
pub struct Executor {
    plan: Plan,
    params: Vec<Param>,
    /// The order in which parameters are locked: the same in every executor, so that two of them
    /// never wait for each other.
    lock_order: Vec<usize>,
    captured: Vec<Tensor>,
    /// Held to keep the arena alive; steps reach it through `memory`.
    _arena: Buffer,
    /// The address of each storage.
    memory: Vec<Memory>,
    /// The address of each parameter, while they are held.
    param_memory: Vec<Memory>,
    param_bytes: Vec<usize>,
    /// Storages whose address changes from run to run.
    bound: Vec<(usize, Home)>,
    outputs: Vec<Tensor>,
    /// Stands where a result repeats another, while a run lasts.
    nothing: Tensor,
    /// Copies of operands that were not dense, by position; their memory is used again.
    dense: Vec<Option<Tensor>>,
    operands: Vec<Tensor>,
    read: Vec<ParamRead>,
    write: Vec<ParamWrite>,
    /// What a body was before any pass, for whoever looks into it.
    written: Option<Arc<Written>>,
}

/// An executor that holds what its steps need, as long as the guard lives.
pub(crate) struct Run<'a>(&'a mut Executor);

impl Deref for Run<'_> {
    type Target = Executor;
    fn deref(&self) -> &Executor {
        self.0
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

impl Executor {
    /// Memory for a plan, bound to these parameters and captured tensors.
    pub fn new(plan: Plan, params: Vec<Param>, captured: Vec<Tensor>) -> Self {
        // How the tensors came about is not needed to read them.
        let captured: Vec<Tensor> = captured.iter().map(Tensor::stop_gradient).collect();
        let mut arena = Buffer::scratch(DType::U8, plan.arena_bytes.max(1));
        let base = arena.as_mut_slice::<u8>().as_mut_ptr();
        let mut memory = Vec::new();
        let mut bound = Vec::new();
        for (i, storage) in plan.storages.iter().enumerate() {
            memory.push(Memory(match storage.home {
                // SAFETY: the plan places every storage inside `arena_bytes`.
                Home::Arena(offset) => unsafe { base.add(offset.min(plan.arena_bytes)) },
                Home::Captured(k) => address(&captured[k].view()),
                Home::Literal(k) => address(&plan.literals[k].view()),
                Home::Passing => std::ptr::null_mut(),
                home => {
                    bound.push((i, home));
                    std::ptr::null_mut()
                }
            }));
        }
        let dense = vec![None; plan.inputs.len()];
        let outputs = plan.outputs.iter().map(|(meta, _)| empty(meta)).collect();
        let mut lock_order: Vec<usize> = (0..params.len()).collect();
        lock_order.sort_by_key(|&p| params[p].id());
        Self {
            lock_order,
            plan,
            param_bytes: params.iter().map(|p| p.meta().bytes()).collect(),
            param_memory: vec![Memory(std::ptr::null_mut()); params.len()],
            params,
            captured,
            _arena: arena,
            memory,
            bound,
            outputs,
            nothing: Tensor::scalar(false),
            dense,
            operands: Vec::new(),
            read: Vec::new(),
            write: Vec::new(),
            written: None,
        }
    }

    /// The executor of a body: while somebody looks into the function around it, it runs as [`look::body`] says.
    pub(crate) fn of_body(mut self, written: Arc<Written>) -> Self {
        self.written = Some(written);
        self
    }

    /// Runs on other parameters of the same kinds from now on; those of before.
    pub(crate) fn exchange_params(&mut self, params: Vec<Param>) -> Vec<Param> {
        std::mem::replace(&mut self.params, params)
    }

    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The tensors that the function captured.
    pub fn captured(&self) -> &[Tensor] {
        &self.captured
    }

    /// Runs the plan on these operands. A result's memory is used again by the next run unless
    /// somebody holds the tensor.
    pub fn run(&mut self, inputs: &[Tensor]) -> Result<&[Tensor], RunError> {
        let views: SmallVec<[View<'_>; 16]> = inputs.iter().map(Tensor::view).collect();
        self.run_on(&views)
    }

    /// [`Executor::run`] on views.
    pub fn run_on(&mut self, inputs: &[View<'_>]) -> Result<&[Tensor], RunError> {
        if let Some(written) = self.written.clone().filter(|_| look::is_on()) {
            self.outputs = look::body(self, &written, inputs)?;
            return Ok(&self.outputs);
        }
        let is_again = self.written.as_ref().is_some_and(|w| w.is_again);
        let run = self.hold(inputs)?;
        let steps = || run.plan.batches.iter().try_for_each(|batch| run.batch(batch));
        let result = if is_again { probe::quietly(steps) } else { steps() };
        drop(run);
        result.map(|()| &self.outputs[..])
    }

    /// [`Executor::begin`] and, when the guard is dropped, [`Executor::end`]: a step that panics must not leave
    /// parameters locked.
    pub(crate) fn hold(&mut self, inputs: &[View<'_>]) -> Result<Run<'_>, RunError> {
        let run = Run(self);
        run.0.begin(inputs)?;
        Ok(run)
    }

    /// Tensors like its results.
    pub(crate) fn spare_outputs(&self) -> Vec<Tensor> {
        self.plan.outputs.iter().map(|(meta, _)| empty(meta)).collect()
    }

    /// Hands out the results of the last run for tensors in whose memory the next is to leave its own; they come from
    /// [`Executor::spare_outputs`].
    pub(crate) fn swap_outputs(&mut self, outputs: &mut Vec<Tensor>) {
        assert_eq!(outputs.len(), self.outputs.len(), "results of another plan");
        std::mem::swap(&mut self.outputs, outputs);
    }

    /// Checks and binds everything; steps may run until [`Executor::end`].
    pub(crate) fn begin(&mut self, inputs: &[View<'_>]) -> Result<(), RunError> {
        self.check(inputs)?;
        self.bind(inputs);
        Ok(())
    }

    /// Lets go of what a run held.
    pub(crate) fn end(&mut self) {
        self.read.clear();
        self.write.clear();
        self.operands.clear();
        for i in 0..self.outputs.len() {
            let same = self.plan.outputs[i].1;
            if same != i {
                self.outputs[i] = self.outputs[same].clone();
            }
        }
    }

    /// The parameters.
    pub(crate) fn params(&self) -> &[Param] {
        &self.params
    }

    /// A copy of what step `i` wrote, result by result. Only between the step and the next.
    pub(crate) fn written_by(&self, i: usize) -> Vec<Tensor> {
        let step = &self.plan.steps[i];
        let copy = |(storage, shape): &(usize, Shape)| {
            let layout = Layout::contiguous(shape.clone());
            dense_copy(&View::over(self.span(*storage), &layout))
        };
        step.outputs.iter().map(copy).collect()
    }

    /// A copy of a result of a step that has run, if none of those up to `n_done` wrote over it since.
    pub(crate) fn still_there(&self, (i, k): (usize, usize), n_done: usize) -> Option<Tensor> {
        let bytes = |storage: usize| {
            let at = self.memory[storage].0.addr();
            at..at + self.plan.storages[storage].len * self.plan.storages[storage].dtype.size()
        };
        let (storage, shape) = &self.plan.steps[i].outputs[k];
        let own = bytes(*storage);
        let later = (i + 1..n_done).flat_map(|j| self.plan.writes_of(j)).map(bytes);
        if later.into_iter().any(|other| other.start < own.end && own.start < other.end) {
            return None;
        }
        Some(dense_copy(&View::over(self.span(*storage), &Layout::contiguous(shape.clone()))))
    }

    /// The results of the last run.
    pub(crate) fn outputs(&self) -> &[Tensor] {
        &self.outputs
    }

    /// Runs all steps as [`Executor::run_on`] does, between [`Executor::begin`] and [`Executor::end`]; `note` gets each with
    /// its beginning and end, on the thread that ran it.
    pub(crate) fn timed(&self, note: &(dyn Fn(usize, Instant, Instant) + Sync)) -> Result<(), RunError> {
        let step = |i: usize| {
            let start = Instant::now();
            let result = self.step(i);
            note(i, start, Instant::now());
            result
        };
        self.plan.batches.iter().try_for_each(|batch| Self::batch_of(batch, &step))
    }

    fn check(&self, inputs: &[View<'_>]) -> Result<(), RunError> {
        if inputs.len() != self.plan.inputs.len() {
            return Err(RunError::Arity { want: self.plan.inputs.len(), got: inputs.len() });
        }
        for (position, (input, want)) in inputs.iter().zip(&self.plan.inputs).enumerate() {
            if input.dtype() != want.dtype || *input.shape() != want.shape {
                let got = Box::new(Meta::new(input.dtype(), input.shape()));
                return Err(RunError::Operand { position, want: Box::new(want.clone()), got });
            }
        }
        Ok(())
    }

    /// Finds the addresses of what comes from outside, and holds it.
    fn bind(&mut self, inputs: &[View<'_>]) {
        // A result that repeats another does not count as somebody who holds it.
        for i in (0..self.outputs.len()).filter(|&i| self.plan.outputs[i].1 != i) {
            self.outputs[i] = self.nothing.clone();
        }
        for (i, (meta, same)) in self.plan.outputs.iter().enumerate() {
            if *same == i && self.outputs[i].own_memory().is_none() {
                self.outputs[i] = empty(meta);
            }
        }
        self.lock_params();
        if !self.plan.joined.iter().all(|list| self.lie_side_by_side(list)) {
            let apart: Vec<&Vec<usize>> =
                self.plan.joined.iter().filter(|list| !self.lie_side_by_side(list)).collect();
            self.read.clear();
            self.write.clear();
            for list in apart {
                Param::lay_side_by_side(&list.iter().map(|&p| &self.params[p]).collect::<Vec<_>>());
            }
            self.lock_params();
        }
        for &(storage, home) in &self.bound {
            match home {
                Home::Input(i) if inputs[i].layout().is_contiguous() => {
                    self.memory[storage] = Memory(dense_address(&inputs[i]));
                }
                Home::Input(i) => {
                    // A view that is not dense is copied.
                    let copy = densely(&inputs[i], &mut self.dense[i]);
                    self.memory[storage] = Memory(address(&copy.view()));
                }
                Home::Joined(list) if self.lie_side_by_side(&self.plan.joined[list]) => {
                    self.memory[storage] = self.param_memory[self.plan.joined[list][0]];
                }
                Home::Joined(list) => {
                    // Somebody else moved one of them in the meantime: the values as they are now.
                    self.operands.push(self.stacked(storage, &self.plan.joined[list]));
                    let copy = self.operands.last().expect("just pushed");
                    self.memory[storage] = Memory(address(&copy.view()));
                }
                Home::Output(i) => {
                    let memory = self.outputs[i].own_memory().expect("made so above");
                    self.memory[storage] = Memory(memory.address());
                }
                Home::Param(p) => self.memory[storage] = self.param_memory[p],
                _ => {}
            }
        }
    }

    /// Holds all parameters still, those that are written for this executor alone.
    fn lock_params(&mut self) {
        for &p in &self.lock_order {
            let dense = |g: &ParamRead| g.view().layout().is_contiguous();
            let held = (!self.plan.written[p]).then(|| self.params[p].hold()).filter(dense);
            let at = match held {
                Some(guard) => {
                    let at = dense_address(&guard.view());
                    self.read.push(guard);
                    at
                }
                None => {
                    let mut guard = self.params[p].hold_mut();
                    let at = guard.span_mut().address();
                    self.write.push(guard);
                    at
                }
            };
            self.param_memory[p] = Memory(at);
        }
    }

    /// Whether each of these parameters, which are held, begins where the one before ends.
    fn lie_side_by_side(&self, list: &[usize]) -> bool {
        list.windows(2).all(|two| {
            let [from, to] = [two[0], two[1]].map(|p| self.param_memory[p].0.addr());
            from + self.param_bytes[two[0]] == to
        })
    }

    /// A copy of these parameters, which are held, one behind the other.
    fn stacked(&self, storage: usize, list: &[usize]) -> Tensor {
        let Storage { dtype, len, .. } = self.plan.storages[storage];
        let span = |p: usize| {
            let at = NonNull::new(self.param_memory[p].0).expect("held");
            // SAFETY: a parameter is dense, and nobody writes it before the first step.
            unsafe { Span::from_raw(at, dtype, self.param_bytes[p] / dtype.size()) }
        };
        thalweg_core::with_dtype!(dtype, T => {
            let all: Vec<T> = list.iter().flat_map(|&p| span(p).as_slice::<T>()).copied().collect();
            Tensor::from_vec(all, [len])
        })
    }

    fn batch(&self, batch: &Range<usize>) -> Result<(), RunError> {
        Self::batch_of(batch, &|i| self.step(i))
    }

    fn batch_of(
        batch: &Range<usize>,
        step: &(impl Fn(usize) -> Result<(), RunError> + Sync),
    ) -> Result<(), RunError> {
        if batch.len() == 1 {
            return step(batch.start);
        }
        let failed = Mutex::new(None);
        parallel(batch.len(), &|i| {
            if let Err(error) = step(batch.start + i) {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Runs one step.
    pub(crate) fn step(&self, i: usize) -> Result<(), RunError> {
        let step = &self.plan.steps[i];
        self.act(step).map_err(|source| {
            let at = step.nodes.iter().find_map(|&id| self.plan.graph.node(id).at);
            RunError::Op { source: Box::new(source), at }
        })
    }

    fn act(&self, step: &Step) -> Result<(), OpError> {
        match &step.action {
            Action::Tiles(programs) => {
                let operands: SmallVec<[Memory; MAX_OPERANDS]> =
                    step.inputs.iter().map(|r| self.memory[r.storage]).collect();
                let results: SmallVec<[Memory; MAX_OPERANDS]> =
                    step.outputs.iter().map(|o| self.memory[o.0]).collect();
                // SAFETY: see `Executor`; the planner protected operands that a result takes over.
                unsafe { program::run(programs, &operands, &results) };
                Ok(())
            }
            Action::Then(then) => self.act_then(step, then),
            Action::Op(op) => {
                let (few, many): (SmallVec<[View<'_>; FEW]>, Scratch<View<'_>>);
                let inputs: &[View<'_>] = if step.inputs.len() <= FEW {
                    few = step.inputs.iter().map(|r| self.view(r)).collect();
                    &few
                } else {
                    many = Scratch::each(step.inputs.len(), |i| self.view(&step.inputs[i]));
                    &many
                };
                let mut y = self.result(step);
                if op.fast(inputs, &mut y) { Ok(()) } else { op.eval(inputs, &mut y) }
            }
            Action::Overwrite(op) => {
                let rest = step.inputs.get(1).map(|r| self.view(r));
                if op.overwrite(rest, &mut self.result(step)) {
                    return Ok(());
                }
                // Not covered: the operand moves out of the way.
                let (storage, shape) = &step.outputs[0];
                let mut copy = Buffer::scratch(self.plan.storages[*storage].dtype, shape.numel());
                copy_bytes(&self.view(&step.inputs[0]), &mut copy);
                let layout = Layout::contiguous(shape.clone());
                let inputs: SmallVec<[View<'_>; 2]> =
                    std::iter::once(View::new(&copy, &layout)).chain(rest).collect();
                let mut y = self.result(step);
                if op.fast(&inputs, &mut y) { Ok(()) } else { op.eval(&inputs, &mut y) }
            }
        }
    }

    fn act_then(&self, step: &Step, then: &Then) -> Result<(), OpError> {
        let (own, others) = step.inputs.split_at(then.n_operands);
        let inputs: SmallVec<[View<'_>; 4]> = own.iter().map(|r| self.view(r)).collect();
        let operands: SmallVec<[Memory; 16]> = others.iter().map(|r| self.memory[r.storage]).collect();
        let written = match then.pool {
            Some(_) => std::slice::from_ref(&then.product),
            None => &step.outputs[..then.program.results.len()],
        };
        let results: SmallVec<[Memory; 8]> = written.iter().map(|o| self.memory[o.0]).collect();
        let place = self.memory[then.product.0].0.addr();
        let ready = |pieces: Pieces, product: *mut u8| {
            // Through the product's own address, since it is borrowed meanwhile.
            let through = |m: &Memory| if m.0.addr() == place { Memory(product) } else { *m };
            let operands: SmallVec<[Memory; 16]> = operands.iter().map(through).collect();
            let results: SmallVec<[Memory; 8]> = results.iter().map(through).collect();
            // SAFETY: see `Executor`; these elements of the product are final, each is ready once, and the group
            // writes nothing that the product reads (`Plan::epilogue`).
            unsafe { then.program.run_pieces(&pieces, &operands, &results) };
        };
        if let Some(pool) = &then.pool {
            let to = self.memory[step.outputs[0].0];
            return self.act_planes(then, &inputs, |pieces, product| {
                ready(pieces.clone(), product);
                // SAFETY: the program is done with these planes, and each is ready once.
                unsafe { pool.take(&pieces, product, to) }
            });
        }
        let mut y = self.memory_of(&then.product);
        if then.op.fast_then(&inputs, &mut y, &ready) {
            return Ok(());
        }
        if !then.op.fast(&inputs, &mut y) {
            then.op.eval(&inputs, &mut y)?;
        }
        // SAFETY: see `Executor`; the product is done, and its view is not used again.
        unsafe { program::run(std::slice::from_ref(&then.program), &operands, &results) };
        Ok(())
    }

    /// A convolution whose planes are passed on, with the address of the first element of all.
    fn act_planes(
        &self,
        then: &Then,
        inputs: &[View<'_>],
        pass: impl Fn(Pieces, *mut u8) -> Result<(), OpError> + Sync,
    ) -> Result<(), OpError> {
        let product = Meta::new(self.plan.storages[then.product.0].dtype, &then.product.1);
        let failed = Mutex::new(None);
        let ready = |pieces: Pieces, first: *mut u8| {
            if let Err(error) = pass(pieces, first) {
                failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
            }
        };
        if !then.op.fast_planes(inputs, &product, &ready) {
            // Not covered after all: all planes are made first.
            let mut whole = Buffer::scratch(product.dtype, product.numel());
            let mut y = ViewMut::new(&mut whole, &product.shape);
            if !then.op.fast(inputs, &mut y) {
                then.op.eval(inputs, &mut y)?;
            }
            ready(Pieces::one(0..product.numel()), whole.as_mut_slice::<f32>().as_mut_ptr().cast());
        }
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    fn view<'a>(&'a self, r: &'a Ref) -> View<'a> {
        View::over(self.span(r.storage), &r.layout)
    }

    fn span(&self, storage: usize) -> Span<'_> {
        let at = NonNull::new(self.memory[storage].0).expect("bound before the first step");
        let storage = &self.plan.storages[storage];
        // SAFETY: see `Executor`: the storage is alive and, during this step, written by nobody.
        unsafe { Span::from_raw(at, storage.dtype, storage.len) }
    }

    fn result<'a>(&'a self, step: &'a Step) -> ViewMut<'a> {
        let (id, _) = step.outputs[0];
        if self.plan.storages[id].dtype == DType::Bool && !matches!(step.action, Action::Overwrite(_)) {
            // What lay here before need not be a `bool`.
            // SAFETY: as in `memory_of`; bytes may hold anything.
            unsafe { self.memory[id].0.write_bytes(0, self.plan.storages[id].len) };
        }
        self.memory_of(&step.outputs[0])
    }

    fn memory_of<'a>(&'a self, (id, shape): &'a (usize, Shape)) -> ViewMut<'a> {
        let storage = &self.plan.storages[*id];
        let at = NonNull::new(self.memory[*id].0).expect("bound before the first step");
        // SAFETY: see `Executor`: during this step nobody else reads or writes this storage.
        ViewMut::over(unsafe { SpanMut::from_raw(at, storage.dtype, storage.len) }, shape)
    }
}

impl Pool {
    /// Runs on some planes of its operand, whose first element of all would lie at `first`.
    ///
    /// # Safety
    /// The planes lie there and are written by nobody; `to` is memory for the whole result, of which nobody else touches these planes.
    unsafe fn take(&self, pieces: &Pieces, first: *mut u8, to: Memory) -> Result<(), OpError> {
        let len = |plane: &[usize]| plane.iter().product::<usize>();
        let (n_in, n_out) = (len(&self.from), len(&self.to));
        for piece in pieces.iter() {
            let (at, n) = (piece.start / n_in, piece.len() / n_in);
            // SAFETY: the caller's promise.
            let (x, y) = unsafe {
                let x = first.cast::<f32>().wrapping_add(piece.start).cast_const();
                let y = to.0.cast::<f32>().add(at * n_out);
                (std::slice::from_raw_parts(x, n * n_in), std::slice::from_raw_parts_mut(y, n * n_out))
            };
            let [from, to] = [&self.from, &self.to]
                .map(|plane| -> Shape { std::iter::once(n).chain(plane.iter().copied()).collect() });
            let from = Layout::contiguous(from);
            let x = [View::over(x.into(), &from)];
            let mut y = ViewMut::over(y.into(), &to);
            if !self.op.fast(&x, &mut y) {
                self.op.eval(&x, &mut y)?;
            }
        }
        Ok(())
    }
}

fn empty(meta: &Meta) -> Tensor {
    Tensor::from_buffer(Buffer::zeros(meta.dtype, meta.numel()), &meta.shape)
}

/// Where the memory under a view begins.
fn address(view: &View<'_>) -> *mut u8 {
    view.address().cast_mut()
}

/// Where the first element of a dense view lies.
fn dense_address(view: &View<'_>) -> *mut u8 {
    let bytes = view.layout().offset() * view.dtype().size();
    view.address().cast_mut().wrapping_add(bytes)
}

pub(crate) fn dense_copy(x: &View<'_>) -> Tensor {
    thalweg_core::with_dtype!(x.dtype(), T => Tensor::from_vec(x.iter::<T>().collect::<Vec<T>>(), x.shape()))
}

/// A dense copy of a view, in the memory of an earlier one of the same kind.
pub(crate) fn densely<'a>(x: &View<'_>, copy: &'a mut Option<Tensor>) -> &'a Tensor {
    let copy = copy.get_or_insert_with(|| empty(&Meta::new(x.dtype(), x.shape())));
    let memory = copy.own_memory().expect("nobody else holds the copy");
    let mut y = ViewMut::over(memory, x.shape());
    let op = Op::from(Reshape { shape: x.shape().clone() });
    if !op.fast(std::slice::from_ref(x), &mut y) {
        op.eval(std::slice::from_ref(x), &mut y).expect("a copy refuses nothing");
    }
    copy
}

fn copy_bytes(from: &View<'_>, to: &mut Buffer) {
    thalweg_core::with_dtype!(from.dtype(), T => {
        let from = from.dense::<T>().expect("only dense operands are overwritten");
        to.as_mut_slice::<T>().copy_from_slice(from);
    });
}
