//! Splits long ranges over the thread pool, at places that do not depend on the number of threads.

use std::marker::PhantomData;
use std::ops::Range;

use crate::threads;

/// Elements per task that hide the cost of a task, and fit the second-level cache with an input or two.
pub const GRAIN: usize = 64 * 1024;

/// Calls `f` with the pieces of `0..len`, each of `grain` elements but the last, on all threads.
pub fn par_chunks(len: usize, grain: usize, f: impl Fn(Range<usize>) + Sync) {
    let grain = grain.max(1);
    if len <= grain {
        if len > 0 {
            f(0..len);
        }
        return;
    }
    threads::parallel(len.div_ceil(grain), &|i| f(i * grain..len.min((i + 1) * grain)));
}

/// Calls `f(start, piece)` with the pieces of `y`, each of `grain` elements but the last, on all threads.
pub fn par_chunks_mut<T: Send>(y: &mut [T], grain: usize, f: impl Fn(usize, &mut [T]) + Sync) {
    let len = y.len();
    let y = SharedMut::new(y);
    // SAFETY: `par_chunks` gives every element to exactly one call.
    par_chunks(len, grain, |r| f(r.start, unsafe { y.range(r) }));
}

/// A mutable slice of which tasks take disjoint ranges.
pub struct SharedMut<'a, T> {
    ptr: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: the only use is `range`, whose callers keep ranges of different threads disjoint; moving the
// `&mut [T]` of a range to another thread needs `T: Send`.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    /// Shares `y` for as long as it is borrowed.
    pub fn new(y: &'a mut [T]) -> Self {
        SharedMut { ptr: y.as_mut_ptr(), len: y.len(), life: PhantomData }
    }

    /// The elements of `range`.
    ///
    /// # Safety
    /// No element may be in two ranges that are alive at once.
    ///
    /// # Panics
    /// When the range does not lie in the slice.
    #[allow(clippy::mut_from_ref, reason = "the caller keeps ranges disjoint, as `split_at_mut` would")]
    pub unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "shared range out of bounds");
        // SAFETY: in bounds by the assertion, of a slice borrowed for `'a`; alone by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(range.start), range.end - range.start) }
    }
}

#[cfg(test)]
mod tests {
    use super::{par_chunks, par_chunks_mut};
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn every_element_is_visited_once() {
        for len in [0, 1, 7, 8, 9, 1000] {
            let mut y = vec![0; len];
            par_chunks_mut(&mut y, 8, |start, y| {
                y.iter_mut().enumerate().for_each(|(i, y)| *y += start + i + 1)
            });
            assert!(y.iter().enumerate().all(|(i, y)| *y == i + 1));
            let total = AtomicUsize::new(0);
            par_chunks(len, 3, |r| {
                total.fetch_add(r.len(), Ordering::Relaxed);
            });
            assert_eq!(total.into_inner(), len);
        }
    }
}
