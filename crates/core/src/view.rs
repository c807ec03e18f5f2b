//! What a kernel sees: an operand to read, a result to fill.

use crate::buffer::{Buffer, Span, SpanMut};
use crate::dtype::{DType, Element};
use crate::layout::Layout;
use crate::shape::Shape;

/// An operand: memory and the layout over it.
#[derive(Clone, Copy)]
pub struct View<'a> {
    memory: Span<'a>,
    layout: &'a Layout,
}

impl<'a> View<'a> {
    /// Panics when the layout leaves the buffer.
    pub fn new(buffer: &'a Buffer, layout: &'a Layout) -> Self {
        Self::over(buffer.span(), layout)
    }

    /// [`View::new`] of memory that is no buffer of its own.
    #[inline]
    pub fn over(memory: Span<'a>, layout: &'a Layout) -> Self {
        debug_assert!(layout.end() <= memory.len(), "layout leaves its memory");
        Self { memory, layout }
    }

    /// The same memory through another layout.
    pub fn with_layout<'b>(&self, layout: &'b Layout) -> View<'b>
    where
        'a: 'b,
    {
        View::over(self.memory, layout)
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.memory.dtype()
    }

    /// The sizes.
    pub fn shape(&self) -> &'a Shape {
        self.layout.shape()
    }

    /// The layout over [`View::memory`].
    pub fn layout(&self) -> &'a Layout {
        self.layout
    }

    /// Where the memory begins: the same for all views of one buffer.
    pub fn address(&self) -> *const u8 {
        self.memory.address()
    }

    /// All the memory under the view, to be read at the positions of its layout.
    #[inline]
    pub fn memory<T: Element>(&self) -> &'a [T] {
        self.memory.as_slice()
    }

    /// The elements in row-major order, if they lie so in memory.
    #[inline]
    pub fn dense<T: Element>(&self) -> Option<&'a [T]> {
        let start = self.layout.offset();
        self.layout.is_contiguous().then(|| match self.layout.numel() {
            0 => &[][..],
            n => &self.memory.as_slice()[start..start + n],
        })
    }

    /// The bytes of the elements in row-major order, if they lie so in memory.
    pub fn dense_bytes(&self) -> Option<&'a [u8]> {
        let size = self.dtype().size();
        let (start, n) = (self.layout.offset(), self.layout.numel());
        self.layout
            .is_contiguous()
            .then(|| if n == 0 { &[][..] } else { &self.memory.bytes()[start * size..(start + n) * size] })
    }

    /// The elements in row-major order.
    pub fn iter<T: Element>(&self) -> impl ExactSizeIterator<Item = T> + 'a {
        let memory = self.memory::<T>();
        self.layout.positions().map(move |p| memory[p])
    }
}

/// A result: dense row-major memory of its own.
pub struct ViewMut<'a> {
    memory: SpanMut<'a>,
    shape: &'a Shape,
}

impl<'a> ViewMut<'a> {
    /// Panics when the buffer does not hold exactly the elements of `shape`.
    pub fn new(buffer: &'a mut Buffer, shape: &'a Shape) -> Self {
        Self::over(buffer.span_mut(), shape)
    }

    /// [`ViewMut::new`] of memory that is no buffer of its own.
    #[inline]
    pub fn over(memory: SpanMut<'a>, shape: &'a Shape) -> Self {
        debug_assert_eq!(memory.len(), shape.numel());
        Self { memory, shape }
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.memory.dtype()
    }

    /// The sizes.
    pub fn shape(&self) -> &'a Shape {
        self.shape
    }

    /// The elements in row-major order; their contents are arbitrary until written.
    #[inline]
    pub fn dense<T: Element>(&mut self) -> &mut [T] {
        self.memory.as_mut_slice()
    }

    /// Fills an f32 result with `f` of the elements of `x`, which has the same shape.
    pub fn map_f32(&mut self, x: &View<'_>, f: impl Fn(f32) -> f32) {
        assert_eq!(x.shape(), self.shape, "map_f32 needs equal shapes");
        for (y, x) in self.dense::<f32>().iter_mut().zip(x.iter::<f32>()) {
            *y = f(x);
        }
    }
}
