//! Whole arrays of f32 on all threads: a function of vectors applied from end to end.
//!
//! An output of [`PAST_CACHE`] elements or more is written past the caches: nothing of its start would be
//! left there when the end is written, and the lines need not be read before they are overwritten. On a
//! Zen 3 with 32 MiB of third-level cache that takes a quarter off an addition from 2²² elements on, also
//! when a reader follows; below 2²¹ it costs the reader half as much again. Bits do not depend on it.

use crate::simd::map::Unary;
use crate::simd::vector::F32s;
use crate::simd::{Body, dispatch};
use crate::stream::split::{GRAIN, par_chunks_mut};

/// Outputs at least this long bypass the caches.
pub const PAST_CACHE: usize = 4 << 20;

/// A function of two vectors.
pub trait Binary: Copy + Sync {
    /// The function; must be `#[inline(always)]` (see [`Body`]).
    fn lanes<V: F32s>(self, a: V, b: V) -> V;
}

/// y = op(x).
///
/// # Panics
/// When the lengths differ.
pub fn map(op: impl Unary + Sync, x: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "map: input and output differ in length");
    let past = y.len() >= PAST_CACHE;
    par_chunks_mut(y, GRAIN, |start, y| {
        dispatch(Fill { from: One { op, x: &x[start..start + y.len()] }, y, past })
    });
}

/// y = op(a, b).
///
/// # Panics
/// When the lengths differ.
pub fn zip(op: impl Binary, a: &[f32], b: &[f32], y: &mut [f32]) {
    assert!(a.len() == y.len() && b.len() == y.len(), "zip: inputs and output differ in length");
    let past = y.len() >= PAST_CACHE;
    par_chunks_mut(y, GRAIN, |start, y| {
        let part = start..start + y.len();
        dispatch(Fill { from: Two { op, a: &a[part.clone()], b: &b[part] }, y, past });
    });
}

macro_rules! binary {
    ($($(#[$doc:meta])* $name:ident $op:ident |$a:ident, $b:ident| $e:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name(a: &[f32], b: &[f32], y: &mut [f32]) {
            #[derive(Clone, Copy)]
            struct $op;
            impl Binary for $op {
                #[inline(always)]
                fn lanes<V: F32s>(self, $a: V, $b: V) -> V { $e }
            }
            zip($op, a, b, y);
        }
    )*};
}

binary! {
    /// y = a + b.
    add Add |a, b| a + b;
    /// y = a − b.
    sub Sub |a, b| a - b;
    /// y = a · b.
    mul Mul |a, b| a * b;
    /// y = a / b.
    div Div |a, b| a / b;
}

/// Where the vectors of an output come from.
trait Source {
    /// The results `i..i + n`, `n` at most `LANES`.
    ///
    /// # Safety
    /// `i + n` must be at most the length, and this CPU must have the instruction set of `V`.
    unsafe fn at<V: F32s>(&self, i: usize, n: usize) -> V;
}

struct One<'a, O> {
    op: O,
    x: &'a [f32],
}

impl<O: Unary> Source for One<'_, O> {
    #[inline(always)]
    unsafe fn at<V: F32s>(&self, i: usize, n: usize) -> V {
        // SAFETY: the bounds are the method's own.
        self.op.lanes(unsafe { V::load_n(self.x.as_ptr().add(i), n, 0.0) })
    }
}

struct Two<'a, O> {
    op: O,
    a: &'a [f32],
    b: &'a [f32],
}

impl<O: Binary> Source for Two<'_, O> {
    #[inline(always)]
    unsafe fn at<V: F32s>(&self, i: usize, n: usize) -> V {
        // SAFETY: the bounds are the method's own, for both.
        unsafe {
            self.op
                .lanes(V::load_n(self.a.as_ptr().add(i), n, 0.0), V::load_n(self.b.as_ptr().add(i), n, 0.0))
        }
    }
}

/// `y` from a source as long as `y`.
struct Fill<'a, S> {
    from: S,
    y: &'a mut [f32],
    past: bool,
}

impl<S: Source> Body for Fill<'_, S> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, v: V) {
        let (len, y) = (self.y.len(), self.y.as_mut_ptr());
        // SAFETY, for all blocks: every vector starts at `i` and has at most `len - i` lanes, of a source and
        // an output of `len`; `v` is a vector of type `V`.
        let mut i = 0;
        if self.past {
            // The first elements, up to where `y` is aligned as `store_past_cache` wants.
            i = y.align_offset(size_of::<V>()).min(len) % V::LANES;
            // SAFETY: see above; `i` is less than `LANES`.
            unsafe { self.from.at::<V>(0, i).store_n(y, i) };
            while i + 2 * V::LANES <= len {
                // SAFETY: see above; `y + i` is aligned, since `i` grows by whole vectors from there.
                unsafe {
                    let (a, b) = (self.from.at::<V>(i, V::LANES), self.from.at::<V>(i + V::LANES, V::LANES));
                    a.store_past_cache(y.add(i));
                    b.store_past_cache(y.add(i + V::LANES));
                }
                i += 2 * V::LANES;
            }
            v.fence();
        }
        while i + 2 * V::LANES <= len {
            // SAFETY: see above.
            unsafe {
                let (a, b) = (self.from.at::<V>(i, V::LANES), self.from.at::<V>(i + V::LANES, V::LANES));
                a.store(y.add(i));
                b.store(y.add(i + V::LANES));
            }
            i += 2 * V::LANES;
        }
        while i < len {
            let n = V::LANES.min(len - i);
            // SAFETY: see above.
            unsafe { self.from.at::<V>(i, n).store_n(y.add(i), n) };
            i += n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PAST_CACHE, add, div, map, mul, sub};
    use crate::simd::map::Unary;
    use crate::simd::vector::F32s;

    #[derive(Clone, Copy)]
    struct Twice;

    impl Unary for Twice {
        #[inline(always)]
        fn lanes<V: F32s>(self, x: V) -> V {
            x + x
        }
    }

    #[test]
    fn every_length_and_alignment_is_filled() {
        for n in (0..=70).chain([PAST_CACHE, PAST_CACHE + 13]) {
            for offset in [0, 1, 3, 7] {
                let a: Vec<f32> = (0..n).map(|i| (i % 1000) as f32 - 500.0).collect();
                let b: Vec<f32> = (0..n).map(|i| (i % 77) as f32 + 1.0).collect();
                let mut all = vec![9.0; n + offset + 1];
                let mut check = |f: &dyn Fn(&mut [f32]), want: &dyn Fn(f32, f32) -> f32| {
                    f(&mut all[offset..offset + n]);
                    assert!(
                        all[offset..offset + n]
                            .iter()
                            .zip(a.iter().zip(&b))
                            .all(|(y, (a, b))| *y == want(*a, *b))
                    );
                    assert_eq!(all[offset + n], 9.0);
                };
                check(&|y| add(&a, &b, y), &|a, b| a + b);
                check(&|y| sub(&a, &b, y), &|a, b| a - b);
                check(&|y| mul(&a, &b, y), &|a, b| a * b);
                check(&|y| div(&a, &b, y), &|a, b| a / b);
                check(&|y| map(Twice, &a, y), &|a, _| a + a);
            }
        }
    }
}
