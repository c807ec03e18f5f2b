//! The history of a tensor: which op made it, from what, and what its gradient rule asked to keep.
//!
//! Histories form a graph that only points backwards in time, so node numbers are a topological
//! order. A node never points to its own output: a kept output is stored without its history and
//! gets it back when the rule asks, or the two would keep each other alive.
//!
//! Levels say who differentiates. A parameter has level 0; the function given to the n-th nested
//! `grad` sees its argument at level n. While a gradient of level n is computed, only ops that
//! depend on a lower level are recorded: exactly those an outer derivative will need.

use std::cell::{Cell, RefCell};
use std::panic::Location;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

use smallvec::SmallVec;

use crate::error::OpError;
use crate::meta::Meta;
use crate::ops::Op;
use crate::tensor::Tensor;

/// Where a tensor comes from: one of the results of a node.
#[derive(Clone)]
pub(crate) struct History {
    pub node: Arc<Node>,
    pub output: u32,
}

/// One recorded application.
pub(crate) struct Node {
    pub id: u64,
    /// The lowest level that this value depends on.
    pub level: u32,
    /// For each operand, its history if a gradient flows there.
    pub edges: SmallVec<[Option<History>; 2]>,
    pub kind: Kind,
    /// The user's line.
    pub at: &'static Location<'static>,
}

#[expect(
    clippy::large_enum_variant,
    reason = "nearly every node is an op; a box would cost it an allocation"
)]
pub(crate) enum Kind {
    /// A variable: gradients end here. `backward` leaves them in the slot.
    Leaf(Mutex<Option<Tensor>>),
    /// A primitive and what its rule asked for.
    Op { op: Op, kept: Kept },
    /// A whole function with a backward of its own.
    Function { outputs: usize, backward: Backward },
}

/// Gradients of the results in, gradients of the operands out; `None` is zero. The second argument says whether anybody wants that
/// of an operand, the third is the node of the function itself, from which its results get their history back.
pub(crate) type Backward = Box<
    dyn Fn(&[Option<Tensor>], &dyn Fn(usize) -> bool, &Arc<Node>) -> Result<Vec<Option<Tensor>>, OpError>
        + Send
        + Sync,
>;

/// What the tape holds for one node.
#[derive(Default)]
pub(crate) struct Kept {
    /// Operand values, `None` where the rule did not ask.
    pub inputs: SmallVec<[Option<Tensor>; 2]>,
    /// Operand shapes, empty when the rule did not ask.
    pub metas: SmallVec<[Meta; 1]>,
    /// The result, without its history.
    pub output: Option<Tensor>,
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// The next node number. Anything recorded later has a larger one.
pub(crate) fn next_id() -> u64 {
    NEXT_ID.fetch_add(1, Relaxed)
}

thread_local! {
    /// Ops are recorded when they depend on a level below this one.
    static RECORD_BELOW: Cell<u32> = const { Cell::new(u32::MAX) };
    /// How many functional derivatives enclose the running code.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether a value of this level is to be recorded now.
#[inline]
pub(crate) fn records(level: u32) -> bool {
    level < RECORD_BELOW.get()
}

/// The current limit, to be handed on.
pub(crate) fn record_limit() -> u32 {
    RECORD_BELOW.get()
}

/// Runs `f` while only levels below `limit` are recorded. A limit never rises inside.
pub(crate) fn recording_below<R>(limit: u32, f: impl FnOnce() -> R) -> R {
    let _guard = Restore::set(&RECORD_BELOW, limit.min(RECORD_BELOW.get()));
    f()
}

/// Runs `f` while everything is recorded.
pub(crate) fn recording_all<R>(f: impl FnOnce() -> R) -> R {
    let _guard = Restore::set(&RECORD_BELOW, u32::MAX);
    f()
}

/// Runs `f` one level deeper and hands it its level. It records everything, also inside `no_grad`,
/// which speaks of the levels around it.
pub(crate) fn deeper<R>(f: impl FnOnce(u32) -> R) -> R {
    let level = DEPTH.get() + 1;
    let _guard = Restore::set(&DEPTH, level);
    recording_all(|| f(level))
}

/// How many derivatives enclose the running code.
pub(crate) fn depth() -> u32 {
    DEPTH.get()
}

thread_local! {
    /// The line whose gradient is being computed.
    static FORWARD: Cell<Option<&'static Location<'static>>> = const { Cell::new(None) };
}

/// Runs a gradient rule: what it applies belongs to the line that was differentiated.
pub(crate) fn on_behalf_of<R>(at: &'static Location<'static>, f: impl FnOnce() -> R) -> R {
    struct Back(Option<&'static Location<'static>>);
    impl Drop for Back {
        fn drop(&mut self) {
            FORWARD.set(self.0);
        }
    }
    let _guard = Back(FORWARD.replace(Some(at)));
    f()
}

/// While it lives, what code in the files of a library applies belongs to the line that called the library: a plan that
/// names lines of layers and optimisers would not tell which of them.
pub struct CallerLine(Option<Caller>);

/// A line, and where the files begin that stand in for it.
type Caller = (&'static Location<'static>, &'static str);

thread_local! {
    static CALLER: Cell<Option<Caller>> = const { Cell::new(None) };
}

impl CallerLine {
    /// `library` is how the paths of its files begin. A line of the library itself says nothing, so that the caller of before
    /// stays.
    pub fn set(at: &'static Location<'static>, library: &'static str) -> Self {
        let outer = CALLER.get();
        if !at.file().starts_with(library) {
            CALLER.set(Some((at, library)));
        }
        Self(outer)
    }
}

impl Drop for CallerLine {
    fn drop(&mut self) {
        CALLER.set(self.0);
    }
}

/// The user's line of what is applied at `caller`.
#[inline]
pub(crate) fn line(caller: &'static Location<'static>) -> &'static Location<'static> {
    let called = || CALLER.get().filter(|(_, library)| caller.file().starts_with(library));
    FORWARD.get().or_else(|| called().map(|(at, _)| at)).unwrap_or(caller)
}

/// Puts a thread-local back, also when `f` panics.
struct Restore(&'static std::thread::LocalKey<Cell<u32>>, u32);

impl Restore {
    fn set(key: &'static std::thread::LocalKey<Cell<u32>>, value: u32) -> Self {
        Self(key, key.replace(value))
    }
}

impl Drop for Restore {
    fn drop(&mut self) {
        self.0.set(self.1);
    }
}

thread_local! {
    /// Contents of dying nodes, while a drop is under way on this thread.
    static DYING: RefCell<Option<Vec<Dying>>> = const { RefCell::new(None) };
}

type Dying = (SmallVec<[Option<History>; 2]>, Kept);

impl Drop for Node {
    /// A history may be a chain of a million nodes: it is taken apart by a loop, not by recursion.
    fn drop(&mut self) {
        let edges = std::mem::take(&mut self.edges);
        let kept = match &mut self.kind {
            Kind::Op { kept, .. } => std::mem::take(kept),
            Kind::Leaf(_) | Kind::Function { .. } => Kept::default(),
        };
        if edges.is_empty() && kept.inputs.is_empty() {
            return;
        }
        let mut mine = Some((edges, kept));
        let nested = DYING.try_with(|dying| match &mut *dying.borrow_mut() {
            Some(list) => {
                list.extend(mine.take());
                true
            }
            none => {
                *none = Some(Vec::new());
                false
            }
        });
        if nested != Ok(false) {
            return;
        }
        // Dropping `mine` may drop other nodes, which then only add themselves to the list.
        drop(mine);
        while let Some(next) = DYING.with(|dying| dying.borrow_mut().as_mut().and_then(Vec::pop)) {
            drop(next);
        }
        DYING.with(|dying| *dying.borrow_mut() = None);
    }
}
