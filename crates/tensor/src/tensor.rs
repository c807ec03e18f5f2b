//! The one tensor type: a shared, immutable view of a buffer, or a value of a trace; with its history
//! if gradients are wanted.

use std::panic::Location;
use std::sync::Arc;

use thalweg_core::{Buffer, DType, Layout, Shape, SpanMut, View};

use crate::error::fail;
use crate::meta::Meta;
use crate::tape::History;
use crate::trace::Symbol;

/// A multi-dimensional array with runtime dtype and shape.
///
/// Cloning is cheap: clones share memory. Values never change under a tensor's feet, since ops
/// return new tensors and memory is reused only when nobody else can see it.
///
/// ```
/// use thalweg_tensor::Tensor;
/// let a = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]);
/// let b = &a * 2.0 + 1.0;
/// assert_eq!(b.to_vec::<f32>(), [3.0, 5.0, 7.0, 9.0]);
/// assert_eq!(a.matmul(&a.t()).sum(()).item::<f32>(), 5.0 + 11.0 + 11.0 + 25.0);
/// ```
#[derive(Clone)]
pub struct Tensor(Arc<Inner>);

struct Inner {
    meta: Meta,
    /// Row-major for a traced tensor.
    layout: Layout,
    memory: Memory,
    history: Option<History>,
}

/// The two states of a tensor.
#[derive(Clone)]
enum Memory {
    /// The values are here.
    Ready(Buffer),
    /// The values will be what a trace says.
    Traced(Symbol),
}

impl Tensor {
    /// A tensor over memory that a kernel has just filled.
    #[inline]
    pub(crate) fn dense(meta: Meta, buffer: Buffer, history: Option<History>) -> Self {
        debug_assert!(meta.dtype == buffer.dtype() && meta.numel() == buffer.len());
        let layout = Layout::contiguous(meta.shape.clone());
        Self(Arc::new(Inner { meta, layout, memory: Memory::Ready(buffer), history }))
    }

    /// A value of a trace.
    pub(crate) fn traced(meta: Meta, symbol: Symbol) -> Self {
        let layout = Layout::contiguous(meta.shape.clone());
        Self(Arc::new(Inner { meta, layout, memory: Memory::Traced(symbol), history: None }))
    }

    /// Another view of this tensor's memory.
    #[inline]
    pub(crate) fn with_layout(&self, layout: Layout, history: Option<History>) -> Self {
        let meta = Meta { dtype: self.dtype(), shape: layout.shape().clone() };
        debug_assert!(!self.is_traced(), "a traced tensor has no memory to lay out");
        Self(Arc::new(Inner { meta, layout, memory: self.0.memory.clone(), history }))
    }

    /// The same values with another history.
    pub(crate) fn with_history(&self, history: Option<History>) -> Self {
        Self(Arc::new(Inner {
            meta: self.0.meta.clone(),
            layout: self.0.layout.clone(),
            memory: self.0.memory.clone(),
            history,
        }))
    }

    /// This fresh value with its history; free when no clone of it was kept.
    pub(crate) fn into_recorded(mut self, history: History) -> Self {
        match Arc::get_mut(&mut self.0) {
            Some(inner) => {
                inner.history = Some(history);
                self
            }
            None => self.with_history(Some(history)),
        }
    }

    /// A dense tensor over the first elements of a buffer: how files and other crates bring data in.
    /// Panics when the buffer does not hold exactly the elements of `shape`.
    #[track_caller]
    pub fn from_buffer(buffer: Buffer, shape: impl Into<Shape>) -> Self {
        let meta = Meta::new(buffer.dtype(), shape);
        assert!(
            meta.numel() == buffer.len(),
            "from_buffer: {} elements for shape {}",
            buffer.len(),
            meta.shape
        );
        Self::dense(meta, buffer, None)
    }

    /// The elements in row-major order: this tensor's own memory where they lie so and fill it, otherwise a copy.
    #[track_caller]
    pub fn to_buffer(&self) -> Buffer {
        match &self.0.memory {
            Memory::Ready(buffer) if self.is_contiguous() && buffer.len() == self.numel() => buffer.clone(),
            _ => self.copied_buffer(),
        }
    }

    /// Dtype and shape.
    pub fn meta(&self) -> &Meta {
        &self.0.meta
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.0.meta.dtype
    }

    /// The sizes, outermost first.
    pub fn shape(&self) -> &Shape {
        &self.0.meta.shape
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.shape().rank()
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape().numel()
    }

    /// The size of one axis, which may count from the back.
    #[track_caller]
    pub fn size(&self, axis: isize) -> usize {
        let axis = crate::error::or_fail(crate::error::InOp::in_op(self.shape().axis(axis), "size"));
        self.shape().get(axis).copied().unwrap_or(1)
    }

    /// How the elements lie in memory.
    pub fn layout(&self) -> &Layout {
        &self.0.layout
    }

    /// Whether the elements follow each other in row-major order.
    pub fn is_contiguous(&self) -> bool {
        self.0.layout.is_contiguous()
    }

    /// What kernels read. Panics, naming both lines, when the tensor is traced: it has no values.
    #[inline]
    #[track_caller]
    pub fn view(&self) -> View<'_> {
        match &self.0.memory {
            Memory::Ready(buffer) => View::new(buffer, &self.0.layout),
            Memory::Traced(symbol) => fail(symbol.unread("read", Location::caller())),
        }
    }

    /// Refuses to go on, naming both lines, when the values that decide a result's shape are traced.
    #[inline]
    #[track_caller]
    pub(crate) fn decides_shape(&self, op: &'static str) {
        if let Memory::Traced(symbol) = &self.0.memory {
            fail(symbol.shapeless(op, Location::caller()));
        }
    }

    /// Whether two tensors look at the same memory.
    pub fn shares_memory_with(&self, other: &Tensor) -> bool {
        match (&self.0.memory, &other.0.memory) {
            (Memory::Ready(a), Memory::Ready(b)) => a.shares(b),
            _ => false,
        }
    }

    /// Whether two are clones of one: the same values with the same history.
    pub fn is_same(&self, other: &Tensor) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// Whether this is a value of a trace, without data.
    #[inline]
    pub fn is_traced(&self) -> bool {
        matches!(self.0.memory, Memory::Traced(_))
    }

    #[inline]
    pub(crate) fn symbol(&self) -> Option<&Symbol> {
        match &self.0.memory {
            Memory::Traced(symbol) => Some(symbol),
            Memory::Ready(_) => None,
        }
    }

    /// Whether a gradient can flow into this tensor.
    pub fn is_tracked(&self) -> bool {
        self.0.history.is_some()
    }

    #[inline]
    pub(crate) fn history(&self) -> Option<&History> {
        self.0.history.as_ref()
    }

    /// The memory, to be overwritten, if this handle is the only one and all of it is this tensor's
    /// own, in order.
    pub fn own_memory(&mut self) -> Option<SpanMut<'_>> {
        let inner = Arc::get_mut(&mut self.0)?;
        let Memory::Ready(buffer) = &mut inner.memory else { return None };
        let whole = inner.layout.is_contiguous() && buffer.len() == inner.meta.numel() && buffer.is_unique();
        whole.then(|| buffer.span_mut())
    }

    /// The memory, if this handle is the only one and all of it is this tensor's own, in order:
    /// then nobody can see it change.
    pub(crate) fn into_unique_buffer(self) -> Result<Buffer, Tensor> {
        match Arc::try_unwrap(self.0) {
            Ok(Inner { meta, layout, memory: Memory::Ready(buffer), history }) => {
                if layout.is_contiguous() && buffer.len() == meta.numel() && buffer.is_unique() {
                    return Ok(buffer);
                }
                Err(Tensor(Arc::new(Inner { meta, layout, memory: Memory::Ready(buffer), history })))
            }
            Ok(inner) => Err(Tensor(Arc::new(inner))),
            Err(shared) => Err(Tensor(shared)),
        }
    }
}
