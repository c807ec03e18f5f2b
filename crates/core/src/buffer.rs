//! Typed, aligned, shared memory. The only `unsafe` code of this crate.
//!
//! Invariants, kept by this file alone:
//! 1. every byte of a block is initialised, and `ptr` is aligned to 64 bytes (pooled) or to the
//!    element (mapped);
//! 2. a `Buffer`'s first `len` elements are valid values of its dtype: any bytes for numbers, only
//!    0 and 1 for `bool`;
//! 3. memory is written only through `&mut Buffer` while its block has exactly one owner, or through
//!    a [`SpanMut`] whose maker answers for it.
#![allow(unsafe_code, reason = "raw memory lives here; see the invariants above")]

use std::alloc::{Layout as AllocLayout, alloc_zeroed, dealloc, handle_alloc_error};
use std::any::Any;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{Ordering::Acquire, fence};

use memmap2::MmapMut;

use crate::dtype::{DType, Element};
use crate::pool;

/// Alignment of pooled memory: a cache line, and the widest SIMD register.
pub(crate) const ALIGN: usize = 64;
/// Blocks from this size on are mapped: their pages are there when they are first written, and not before.
const MAP_FROM: usize = 1 << 20;
/// From this size on in huge pages: two of usual size.
const HUGE_FROM: usize = 4 << 20;

/// A block of memory with its owner.
pub(crate) struct Block {
    ptr: NonNull<u8>,
    capacity: usize,
    owner: Owner,
}

enum Owner {
    /// Allocated here, with `capacity` bytes at `ALIGN`.
    Heap,
    /// Mapped here, `capacity` bytes of its own.
    Mapped(#[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "unmaps when dropped"))] MmapMut),
    /// A part of a larger block, which no other part overlaps.
    Part(Arc<Block>),
    /// Lent by something that must stay alive: a memory-mapped file.
    Lent(#[expect(dead_code, reason = "held to keep the memory alive")] Arc<dyn Any + Send + Sync>),
}

// SAFETY: a block is plain memory; it is written only through unique ownership (invariant 3), and
// a lent owner is itself `Send + Sync`.
unsafe impl Send for Block {}
// SAFETY: as above; shared access only reads.
unsafe impl Sync for Block {}

impl Block {
    /// Zeroed memory from the system. Large blocks are mapped, the largest in huge pages where the system has
    /// them: filling fresh small pages costs more than most kernels that do it.
    pub(crate) fn allocate(capacity: usize) -> Self {
        let block = Self::from_system(capacity);
        // Without huge pages it is merely slower.
        #[cfg(target_os = "linux")]
        if let Owner::Mapped(map) = &block.owner
            && capacity >= HUGE_FROM
        {
            let _ = map.advise(memmap2::Advice::HugePage);
        }
        block
    }

    /// The same for memory that may never be written: of large blocks there is no more than what is, in small pages.
    pub(crate) fn reserve(capacity: usize) -> Self {
        let block = Self::from_system(capacity);
        #[cfg(target_os = "linux")]
        if let Owner::Mapped(map) = &block.owner {
            let _ = map.advise(memmap2::Advice::NoHugePage);
        }
        block
    }

    fn from_system(capacity: usize) -> Self {
        if capacity >= MAP_FROM
            && let Ok(mut map) = MmapMut::map_anon(capacity)
            && let Some(ptr) = NonNull::new(map.as_mut_ptr())
        {
            return Self { ptr, capacity, owner: Owner::Mapped(map) };
        }
        let layout = AllocLayout::from_size_align(capacity.max(ALIGN), ALIGN)
            .expect("pool classes stay below isize::MAX");
        // SAFETY: the layout has non-zero size.
        let ptr = unsafe { alloc_zeroed(layout) };
        let Some(ptr) = NonNull::new(ptr) else { handle_alloc_error(layout) };
        Self { ptr, capacity: capacity.max(ALIGN), owner: Owner::Heap }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Owner::Heap = self.owner {
            let layout = AllocLayout::from_size_align(self.capacity, ALIGN).expect("checked when allocated");
            // SAFETY: allocated in `allocate` with this very layout, and freed only here.
            unsafe { dealloc(self.ptr.as_ptr(), layout) };
        }
    }
}

/// Memory for `len` elements of one dtype, shared by clones, returned to the pool by the last one.
pub struct Buffer {
    block: ManuallyDrop<Arc<Block>>,
    dtype: DType,
    len: usize,
}

impl Buffer {
    /// Memory whose contents are valid but arbitrary: what its previous user left behind.
    pub fn scratch(dtype: DType, len: usize) -> Self {
        Self::from_pool(dtype, len, Block::allocate)
    }

    /// The same for memory that a peer or a file merely claims to need: fresh memory costs nothing before it is written.
    pub fn reserve(dtype: DType, len: usize) -> Self {
        Self::from_pool(dtype, len, Block::reserve)
    }

    fn from_pool(dtype: DType, len: usize, fresh: fn(usize) -> Block) -> Self {
        let bytes = len.checked_mul(dtype.size()).expect("shapes are checked before memory is asked for");
        let mut buffer = Self { block: ManuallyDrop::new(pool::take(bytes, fresh)), dtype, len };
        if dtype == DType::Bool {
            // A stale byte need not be a `bool` (invariant 2).
            buffer.bytes_mut().fill(0);
        }
        buffer
    }

    /// Memory filled with zeros.
    pub fn zeros(dtype: DType, len: usize) -> Self {
        let mut buffer = Self::scratch(dtype, len);
        buffer.bytes_mut().fill(0);
        buffer
    }

    /// Whether another value can begin right behind one of this size; see [`Buffer::side_by_side`].
    pub fn can_have_neighbour(dtype: DType, len: usize) -> bool {
        dtype != DType::Bool && (len * dtype.size()).is_multiple_of(ALIGN)
    }

    /// Memory for several values, each right behind the one before: together they can be read as one. Each is a buffer of
    /// its own, written by whoever owns it alone. `None` when one would begin between two cache lines, and for
    /// `bool`, whose memory would have to be cleared first.
    pub fn side_by_side(dtype: DType, lens: &[usize]) -> Option<Vec<Self>> {
        let bytes = |len: &usize| len * dtype.size();
        let total: usize = lens.iter().map(bytes).sum();
        if !lens.iter().rev().skip(1).all(|&len| Self::can_have_neighbour(dtype, len)) {
            return None;
        }
        let whole = pool::take(total, Block::allocate);
        let mut at = 0;
        let part = |len: &usize| {
            // SAFETY: the parts lie one behind the other in a block of `total` bytes, of which this is the only owner.
            let ptr = unsafe { whole.ptr.add(at) };
            at += bytes(len);
            let block = Block { ptr, capacity: bytes(len), owner: Owner::Part(whole.clone()) };
            Self { block: ManuallyDrop::new(Arc::new(block)), dtype, len: *len }
        };
        Some(lens.iter().map(part).collect())
    }

    /// The values of [`Buffer::side_by_side`] as one again, without a copy. They come back as they were when they are not all
    /// of them in their order, or when somebody else holds one.
    pub fn join(parts: Vec<Self>) -> Result<Self, Vec<Self>> {
        let whole = parts.first().and_then(|part| match &part.block.owner {
            Owner::Part(whole) => Some(whole.clone()),
            _ => None,
        });
        let Some(whole) = whole else { return Err(parts) };
        let dtype = parts[0].dtype;
        let mut end = whole.ptr.addr().get();
        let follows = |part: &Self| {
            let here = part.block.ptr.addr().get() == end && part.dtype == dtype && part.is_unique();
            end += part.len * dtype.size();
            here && matches!(&part.block.owner, Owner::Part(of) if Arc::ptr_eq(of, &whole))
        };
        // Each part holds the whole, and so does this function: nobody is left who could write, or read what is written.
        if !parts.iter().all(follows) || Arc::strong_count(&whole) != parts.len() + 1 {
            return Err(parts);
        }
        let len = parts.iter().map(Self::len).sum();
        drop(parts);
        Ok(Self { block: ManuallyDrop::new(whole), dtype, len })
    }

    /// A copy of a slice.
    pub fn from_slice<T: Element>(data: &[T]) -> Self {
        let mut buffer = Self::scratch(T::DTYPE, data.len());
        buffer.as_mut_slice().copy_from_slice(data);
        buffer
    }

    /// A copy of raw little-endian bytes. `None` when the count is no multiple of the element size,
    /// or when a `bool` is neither 0 nor 1.
    pub fn from_le_bytes(dtype: DType, bytes: &[u8]) -> Option<Self> {
        if !bytes.len().is_multiple_of(dtype.size()) || !valid(dtype, bytes) {
            return None;
        }
        let mut buffer = Self::scratch(dtype, bytes.len() / dtype.size());
        buffer.bytes_mut().copy_from_slice(bytes);
        if cfg!(target_endian = "big") {
            buffer.bytes_mut().chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
        }
        Some(buffer)
    }

    /// Memory lent by `owner` without a copy, for instance a range of a mapped file. `None` when the
    /// bytes cannot be read in place: misaligned, a bad `bool`, or the wrong byte order; copy then.
    ///
    /// The bytes must not change while `owner` lives. For a mapped file this is the promise of
    /// whoever maps it.
    pub fn lend<O>(owner: O, range: std::ops::Range<usize>, dtype: DType) -> Option<Self>
    where
        O: AsRef<[u8]> + Send + Sync + 'static,
    {
        // Behind an `Arc` first: moving `owner` afterwards could move bytes that it holds inline.
        // The borrow below then lasts as long as this `Arc`, since nobody mutates through it.
        let owner = Arc::new(owner);
        let bytes = (*owner).as_ref().get(range)?;
        let ptr = NonNull::from(bytes).cast::<u8>();
        let fits =
            (ptr.as_ptr() as usize).is_multiple_of(dtype.size()) && bytes.len().is_multiple_of(dtype.size());
        if cfg!(target_endian = "big") || !fits || !valid(dtype, bytes) {
            return None;
        }
        let (capacity, len) = (bytes.len(), bytes.len() / dtype.size());
        Some(Self {
            block: ManuallyDrop::new(Arc::new(Block { ptr, capacity, owner: Owner::Lent(owner) })),
            dtype,
            len,
        })
    }

    /// The dtype.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether nobody else holds this memory, so that it may be overwritten.
    pub fn is_unique(&self) -> bool {
        let unique = Arc::strong_count(&self.block) == 1 && !matches!(self.block.owner, Owner::Lent(_));
        // Whoever held it on another thread has read it before letting go of it.
        fence(Acquire);
        unique
    }

    /// Whether two buffers are the same memory.
    pub fn shares(&self, other: &Buffer) -> bool {
        Arc::ptr_eq(&self.block, &other.block)
    }

    /// The elements. Panics when `T` is not the buffer's dtype.
    #[inline]
    pub fn as_slice<T: Element>(&self) -> &[T] {
        assert!(T::DTYPE == self.dtype, "buffer of {} read as {}", self.dtype, T::DTYPE);
        // SAFETY: invariants 1 and 2 hold for `len` elements of this dtype, and `Element` is sealed
        // to types of exactly that representation. Nobody writes while `&self` is shared (3).
        unsafe { std::slice::from_raw_parts(self.block.ptr.as_ptr().cast::<T>(), self.len) }
    }

    /// The elements, to be overwritten. Panics when `T` is not the dtype or the memory is shared.
    #[inline]
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        assert!(T::DTYPE == self.dtype, "buffer of {} written as {}", self.dtype, T::DTYPE);
        assert!(self.is_unique(), "shared memory is never written");
        // SAFETY: as in `as_slice`; unique ownership was just checked, and `&mut self` keeps it: a
        // clone needs `&self`. Writing a `T` keeps invariant 2.
        unsafe { std::slice::from_raw_parts_mut(self.block.ptr.as_ptr().cast::<T>(), self.len) }
    }

    /// All elements, to be read without naming their type.
    #[inline]
    pub fn span(&self) -> Span<'_> {
        Span { ptr: self.block.ptr, dtype: self.dtype, len: self.len, lent: PhantomData }
    }

    /// All elements, to be overwritten without naming their type. Panics when the memory is shared.
    #[inline]
    pub fn span_mut(&mut self) -> SpanMut<'_> {
        assert!(self.is_unique(), "shared memory is never written");
        SpanMut { ptr: self.block.ptr, dtype: self.dtype, len: self.len, lent: PhantomData }
    }

    /// The raw bytes.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: all bytes of a block are initialised (1), and `len` elements fit in it.
        unsafe { std::slice::from_raw_parts(self.block.ptr.as_ptr(), self.len * self.dtype.size()) }
    }

    /// The raw bytes, private because a caller could break invariant 2.
    fn bytes_mut(&mut self) -> &mut [u8] {
        assert!(self.is_unique(), "shared memory is never written");
        // SAFETY: as in `bytes`, and unique as in `as_mut_slice`.
        unsafe { std::slice::from_raw_parts_mut(self.block.ptr.as_ptr(), self.len * self.dtype.size()) }
    }
}

/// Elements of one dtype to be read: a slice whose type is known at run time.
#[derive(Clone, Copy)]
pub struct Span<'a> {
    ptr: NonNull<u8>,
    dtype: DType,
    len: usize,
    lent: PhantomData<&'a [u8]>,
}

/// Elements of one dtype to be overwritten: a mutable slice whose type is known at run time.
pub struct SpanMut<'a> {
    ptr: NonNull<u8>,
    dtype: DType,
    len: usize,
    lent: PhantomData<&'a mut [u8]>,
}

// SAFETY: a span is a shared slice of plain numbers, which may be read from any thread.
unsafe impl Send for Span<'_> {}
// SAFETY: as above.
unsafe impl Sync for Span<'_> {}
// SAFETY: a mutable span is a unique slice of plain numbers, which may move between threads.
unsafe impl Send for SpanMut<'_> {}
// SAFETY: through a shared reference nothing but dtype and length can be had.
unsafe impl Sync for SpanMut<'_> {}

impl<'a> Span<'a> {
    /// Elements that lie at `ptr`, for whoever manages memory of their own.
    ///
    /// # Safety
    /// For `'a`, `ptr` is aligned to the dtype and points to `len` valid elements (invariant 2) that
    /// nobody writes.
    pub unsafe fn from_raw(ptr: NonNull<u8>, dtype: DType, len: usize) -> Self {
        Self { ptr, dtype, len, lent: PhantomData }
    }

    /// The dtype.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The elements. Panics when `T` is not the dtype.
    #[inline]
    pub fn as_slice<T: Element>(&self) -> &'a [T] {
        assert!(T::DTYPE == self.dtype, "elements of {} read as {}", self.dtype, T::DTYPE);
        // SAFETY: the span was made from a borrowed buffer, or its maker promised the same, and
        // `Element` is sealed to types of exactly the dtype's representation.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr().cast::<T>(), self.len) }
    }

    /// Where the elements lie.
    #[inline]
    pub fn address(&self) -> *const u8 {
        self.ptr.as_ptr()
    }

    /// The raw bytes.
    pub fn bytes(&self) -> &'a [u8] {
        // SAFETY: as in `as_slice`; numbers have no padding.
        unsafe { std::slice::from_raw_parts(self.ptr.as_ptr(), self.len * self.dtype.size()) }
    }
}

impl SpanMut<'_> {
    /// Elements that lie at `ptr`, for whoever manages memory of their own.
    ///
    /// # Safety
    /// For the lifetime, `ptr` is aligned to the dtype and points to `len` valid elements
    /// (invariant 2) that nobody else reads or writes.
    pub unsafe fn from_raw(ptr: NonNull<u8>, dtype: DType, len: usize) -> Self {
        Self { ptr, dtype, len, lent: PhantomData }
    }

    /// The dtype.
    #[inline]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of elements.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Where the elements lie, for whoever manages who may use them.
    #[inline]
    pub fn address(&self) -> *mut u8 {
        self.ptr.as_ptr()
    }

    /// The elements. Panics when `T` is not the dtype.
    #[inline]
    pub fn as_mut_slice<T: Element>(&mut self) -> &mut [T] {
        assert!(T::DTYPE == self.dtype, "elements of {} written as {}", self.dtype, T::DTYPE);
        // SAFETY: as in `Span::as_slice`, and unique: made from `&mut Buffer` with one owner, or its
        // maker promised so; `&mut self` hands it out once at a time.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.as_ptr().cast::<T>(), self.len) }
    }
}

impl<'a, T: Element> From<&'a [T]> for Span<'a> {
    fn from(elements: &'a [T]) -> Self {
        let ptr = NonNull::from(elements).cast();
        Self { ptr, dtype: T::DTYPE, len: elements.len(), lent: PhantomData }
    }
}

impl<'a, T: Element> From<&'a mut [T]> for SpanMut<'a> {
    fn from(elements: &'a mut [T]) -> Self {
        let len = elements.len();
        Self { ptr: NonNull::from(elements).cast(), dtype: T::DTYPE, len, lent: PhantomData }
    }
}

fn valid(dtype: DType, bytes: &[u8]) -> bool {
    dtype != DType::Bool || bytes.iter().all(|&b| b <= 1)
}

impl Clone for Buffer {
    fn clone(&self) -> Self {
        Self { block: ManuallyDrop::new(Arc::clone(&self.block)), dtype: self.dtype, len: self.len }
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        // SAFETY: `self.block` is not touched again: this is the end of `drop`.
        let mut block = unsafe { ManuallyDrop::take(&mut self.block) };
        // The last owner gives pooled memory back whole, its `Arc` included, so that the next
        // buffer of this size costs no allocation at all.
        if let Some(b) = Arc::get_mut(&mut block)
            && matches!(b.owner, Owner::Heap | Owner::Mapped(_))
        {
            pool::give(block);
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} x {})", self.len, self.dtype)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_comes_back_from_the_pool() {
        let first = Buffer::scratch(DType::F32, 1000);
        let at = first.bytes().as_ptr();
        drop(first);
        assert_eq!(Buffer::scratch(DType::F32, 1000).bytes().as_ptr(), at);
    }

    #[test]
    fn stale_bytes_never_become_bools() {
        let n = 777;
        drop(Buffer::from_slice(&vec![0xFFu8; n]));
        assert!(Buffer::scratch(DType::Bool, n).as_slice::<bool>().iter().all(|&b| !b));
        assert!(Buffer::from_le_bytes(DType::Bool, &[0, 1, 2]).is_none());
    }

    #[test]
    #[should_panic(expected = "shared memory is never written")]
    fn shared_memory_cannot_be_written() {
        let mut a = Buffer::zeros(DType::F32, 4);
        let _b = a.clone();
        a.as_mut_slice::<f32>()[0] = 1.0;
    }

    #[test]
    fn lent_memory_is_read_in_place_and_only_when_aligned() {
        let owner: Vec<u8> = vec![0; 64];
        let at = owner.as_ptr() as usize;
        let first = (0..4).find(|i| (at + i).is_multiple_of(4)).unwrap();
        let b = Buffer::lend(owner.clone(), first..first + 8, DType::F32);
        // The clone may be aligned differently; either outcome must be consistent.
        if let Some(b) = b {
            assert_eq!(b.as_slice::<f32>(), [0.0, 0.0]);
            assert!(!b.is_unique());
        }
        assert!(Buffer::lend(owner.clone(), 0..7, DType::F32).is_none());
        assert!(Buffer::lend(owner, 60..70, DType::U8).is_none());
    }

    #[test]
    fn parts_lie_side_by_side_and_are_written_by_themselves() {
        let mut parts = Buffer::side_by_side(DType::F32, &[16, 32, 3]).unwrap();
        for (i, part) in parts.iter_mut().enumerate() {
            part.as_mut_slice::<f32>().fill(i as f32);
        }
        let at = |b: &Buffer| b.bytes().as_ptr_range();
        assert!(parts.windows(2).all(|two| at(&two[0]).end == at(&two[1]).start));
        let middle = parts.remove(1);
        drop(parts);
        assert_eq!(middle.as_slice::<f32>(), [1.0; 32]);
        assert!(Buffer::side_by_side(DType::F32, &[3, 16]).is_none());
    }

    #[test]
    fn parts_become_one_when_all_of_them_are_there_and_nobody_else_holds_one() {
        let parts = || {
            let mut parts = Buffer::side_by_side(DType::F32, &[16, 32, 3]).unwrap();
            parts.iter_mut().zip([1.0f32, 2.0, 3.0]).for_each(|(part, v)| part.as_mut_slice().fill(v));
            parts
        };
        let at = parts();
        let at = (at[0].bytes().as_ptr(), Buffer::join(at).unwrap());
        assert_eq!(at.0, at.1.bytes().as_ptr());
        assert!(at.1.is_unique());
        let want: Vec<f32> = [[1.0; 16].as_slice(), &[2.0; 32], &[3.0; 3]].concat();
        assert_eq!(at.1.as_slice::<f32>(), want);

        let held = parts();
        let holds = held[1].clone();
        let held = Buffer::join(held).unwrap_err();
        drop(holds);
        assert!(Buffer::join(held).is_ok(), "nobody holds it any more");
        let mut swapped = parts();
        swapped.swap(0, 1);
        assert!(Buffer::join(swapped).is_err());
        let (mut lacking, mut others) = (parts(), parts());
        let last = lacking.pop();
        let lacking = Buffer::join(lacking).unwrap_err();
        drop(last);
        assert_eq!(Buffer::join(lacking).unwrap().len(), 48, "nobody has the rest");
        others[2] = parts().remove(2);
        assert!(Buffer::join(others).is_err());
        assert!(Buffer::join(vec![]).is_err());
        assert!(Buffer::join(vec![Buffer::zeros(DType::F32, 4)]).is_err());
    }

    #[test]
    fn buffers_cross_threads() {
        let b = Buffer::from_slice(&[1i64, 2, 3]);
        let c = b.clone();
        let sum: i64 = std::thread::spawn(move || c.as_slice::<i64>().iter().sum()).join().unwrap();
        assert_eq!(sum, 6);
        assert!(b.is_unique());
    }
}
