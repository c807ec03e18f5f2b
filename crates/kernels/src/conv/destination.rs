//! Where the result of a convolution goes.

use std::cell::Cell;
use std::ops::Range;

use super::dense::with_scratch;
use crate::stream::split::{SharedMut, par_chunks};

/// To memory of its own, or past whoever waits for its pieces and nowhere else.
pub(super) enum Destination<'a> {
    Kept(SharedMut<'a, f32>),
    Passing,
}

thread_local! {
    static PASSING: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

impl<'a> Destination<'a> {
    pub fn kept(y: &'a mut [f32]) -> Self {
        Destination::Kept(SharedMut::new(y))
    }

    /// Lends the memory of some elements of the result. If they pass, it holds anything before and nothing after.
    ///
    /// # Safety
    /// No element may be in two ranges that are alive at once.
    pub unsafe fn with(&self, range: Range<usize>, f: impl FnOnce(&mut [f32])) {
        match self {
            // SAFETY: the caller's promise.
            Destination::Kept(y) => f(unsafe { y.range(range) }),
            Destination::Passing => with_scratch(&PASSING, range.len(), f),
        }
    }

    /// Calls `f(start, piece)` with the pieces of `0..len`, each of `grain` elements but the last, on all threads.
    pub fn chunks(&self, len: usize, grain: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
        // SAFETY: `par_chunks` gives every element to exactly one call.
        par_chunks(len, grain, |r| unsafe { self.with(r.clone(), |piece| f(r.start, piece)) });
    }
}
