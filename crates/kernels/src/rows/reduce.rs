//! Sum, sum of squares, mean and variance, maximum and minimum of rows and of whole vectors.
//!
//! A row is summed in 64 lanes, in blocks of 4096 elements so that no lane adds more than 64 terms in
//! sequence before it joins a wider sum; then the lanes are folded in halves. A block takes its elements from
//! four quarters of the row in turn, since one stream of loads does not keep the memory busy (16 Mi floats
//! on one core: 3.4 ms with one stream, 2.6 with two, 2.3 with four and with eight; prefetching
//! by hand lost). A row longer than [`LONG`] is cut there, the pieces run on all threads and are folded in pairs.

use crate::rows::par_rows;
use crate::scratch::Scratch;
use crate::simd::scalar::Lane;
use crate::simd::vector::{F32s, GROUP};
use crate::simd::{Body, dispatch};
use crate::stream::split::{SharedMut, par_chunks_mut};

/// The longest piece of a row that one task reduces.
pub const LONG: usize = 64 * 1024;

const BLOCK: usize = 64 * GROUP;
/// Parts of a row that are read side by side.
const STREAMS: usize = 4;

/// y = Σ x over each row; 0 for empty rows. x: (rows, cols), y: (rows).
pub fn sum(x: &[f32], cols: usize, y: &mut [f32]) {
    reduce_rows(x, cols, y, |x| Sum { x });
}

/// y = Σ x² over each row. x: (rows, cols), y: (rows).
pub fn sum_of_squares(x: &[f32], cols: usize, y: &mut [f32]) {
    reduce_rows(x, cols, y, |x| Squares { x, centre: 0.0 });
}

/// y = max x over each row, NaN if the row has one, −∞ for empty rows. x: (rows, cols), y: (rows).
pub fn max(x: &[f32], cols: usize, y: &mut [f32]) {
    reduce_rows(x, cols, y, |x| Max { x });
}

/// y = min x over each row, NaN if the row has one, +∞ for empty rows. x: (rows, cols), y: (rows).
pub fn min(x: &[f32], cols: usize, y: &mut [f32]) {
    reduce_rows(x, cols, y, |x| Min { x });
}

/// Mean of each row and its variance about the mean (divided by cols), in two passes. x: (rows, cols).
pub fn mean_and_variance(x: &[f32], cols: usize, mean: &mut [f32], variance: &mut [f32]) {
    assert_eq!(mean.len(), variance.len(), "mean_and_variance: outputs differ in length");
    sum(x, cols, mean);
    mean.iter_mut().for_each(|m| *m /= cols as f32);
    if cols > LONG {
        for ((row, m), v) in x.chunks_exact(cols).zip(&*mean).zip(&mut *variance) {
            reduce_rows(row, cols, std::slice::from_mut(v), |x| Squares { x, centre: *m });
        }
    } else {
        let (rows, mean, out) = (mean.len(), &*mean, SharedMut::new(variance));
        par_rows(rows, cols, |r| {
            // SAFETY: `par_rows` gives every row to exactly one call.
            let out = unsafe { out.range(r.clone()) };
            for (v, row) in out.iter_mut().zip(r) {
                let x = &x[row * cols..(row + 1) * cols];
                *v = dispatch(Squares { x, centre: mean[row] });
            }
        });
    }
    variance.iter_mut().for_each(|v| *v /= cols as f32);
}

/// Σ x over the whole slice.
pub fn sum_all(x: &[f32]) -> f32 {
    let mut y = [0.0];
    sum(x, x.len(), &mut y);
    y[0]
}

/// max x over the whole slice, NaN if it has one, −∞ if empty.
pub fn max_all(x: &[f32]) -> f32 {
    let mut y = [0.0];
    max(x, x.len(), &mut y);
    y[0]
}

/// A reduction of a row: the terms, and how two partial results combine.
pub(crate) trait Reduction: Copy {
    /// Combining with it changes nothing.
    const IDENTITY: f32;
    /// How many terms.
    fn len(&self) -> usize;
    /// `acc` combined with the terms `i..i + n`, `n` at most `LANES`.
    ///
    /// # Safety
    /// `i + n <= len`, and this CPU has the instruction set of `V`.
    unsafe fn step<V: F32s>(&self, acc: V, i: usize, n: usize) -> V;
    /// Two partial results as one.
    fn combine<V: F32s>(a: V, b: V) -> V;
}

macro_rules! reduction {
    ($name:ident { $($field:ident: $t:ty),* } of $x:ident, $identity:expr,
     |$s:ident, $acc:ident, $i:ident, $n:ident| $step:expr, |$a:ident, $b:ident| $combine:expr) => {
        #[derive(Clone, Copy)]
        pub(crate) struct $name<'a> { $(pub $field: $t),* }
        impl Reduction for $name<'_> {
            const IDENTITY: f32 = $identity;
            #[inline(always)]
            fn len(&self) -> usize { self.$x.len() }
            #[inline(always)]
            unsafe fn step<V: F32s>(&self, $acc: V, $i: usize, $n: usize) -> V { let $s = self; $step }
            #[inline(always)]
            fn combine<V: F32s>($a: V, $b: V) -> V { $combine }
        }
        impl Body for $name<'_> {
            type Out = f32;
            #[inline(always)]
            fn run<V: F32s>(self, v: V) -> f32 { reduce(v, self) }
        }
    };
}
pub(crate) use reduction;

/// The terms `i..i + n` of `x`, padded.
///
/// # Safety
/// `i + n <= x.len()`, and this CPU has the instruction set of `V`.
#[inline(always)]
pub(crate) unsafe fn at<V: F32s>(x: &[f32], i: usize, n: usize, pad: f32) -> V {
    // SAFETY: the caller's promise.
    unsafe { V::load_n(x.as_ptr().add(i), n, pad) }
}

reduction!(Sum { x: &'a [f32] } of x, 0.0,
    // SAFETY: the bounds are `step`'s own.
    |s, acc, i, n| acc + unsafe { at(s.x, i, n, 0.0) },
    |a, b| a + b);
reduction!(Max { x: &'a [f32] } of x, f32::NEG_INFINITY,
    // SAFETY: the bounds are `step`'s own.
    |s, acc, i, n| acc.max_or_nan(unsafe { at(s.x, i, n, f32::NEG_INFINITY) }),
    |a, b| a.max_or_nan(b));
reduction!(Min { x: &'a [f32] } of x, f32::INFINITY,
    // SAFETY: the bounds are `step`'s own.
    |s, acc, i, n| acc.min_or_nan(unsafe { at(s.x, i, n, f32::INFINITY) }),
    |a, b| a.min_or_nan(b));
reduction!(Deviations { x: &'a [f32], centre: f32 } of x, 0.0,
    // SAFETY: the bounds are `step`'s own.
    |s, acc, i, n| acc + (unsafe { at::<V>(s.x, i, n, s.centre) } - acc.splat(s.centre)),
    |a, b| a + b);
reduction!(Squares { x: &'a [f32], centre: f32 } of x, 0.0,
    |s, acc, i, n| {
        // SAFETY: the bounds are `step`'s own.
        let d = unsafe { at::<V>(s.x, i, n, s.centre) } - acc.splat(s.centre);
        d.mul_add(d, acc)
    },
    |a, b| a + b);

/// The reduction of one row, in the order that the module doc gives.
#[inline(always)]
pub(crate) fn reduce<V: F32s, R: Reduction>(v: V, r: R) -> f32 {
    let len = r.len();
    let none = v.splat(R::IDENTITY).group();
    let mut total = none;
    let join = |total: &mut V::Group, part: V::Group| {
        for (t, p) in total.as_mut().iter_mut().zip(part.as_ref()) {
            *t = R::combine(*t, *p);
        }
    };
    // The whole blocks of the row, as streams of `stream` elements one behind the other.
    let stream = len / BLOCK * (BLOCK / STREAMS);
    let mut start = 0;
    while start < stream {
        let mut part = none;
        let mut i = start;
        start += BLOCK / STREAMS;
        while i < start {
            for s in 0..STREAMS {
                for (k, acc) in part.as_mut().iter_mut().enumerate() {
                    // SAFETY: `i + GROUP <= stream` and `STREAMS * stream <= len`; `v` is a vector of type `V`.
                    *acc = unsafe { r.step(*acc, s * stream + i + k * V::LANES, V::LANES) };
                }
            }
            i += GROUP;
        }
        join(&mut total, part);
    }
    let mut part = none;
    let mut i = STREAMS * stream;
    while i + GROUP <= len {
        for (k, acc) in part.as_mut().iter_mut().enumerate() {
            // SAFETY: `i + GROUP <= len`; `v` as above.
            *acc = unsafe { r.step(*acc, i + k * V::LANES, V::LANES) };
        }
        i += GROUP;
    }
    for acc in part.as_mut() {
        if i < len {
            let n = V::LANES.min(len - i);
            // SAFETY: `i + n <= len`; `v` as above.
            *acc = unsafe { r.step(*acc, i, n) };
            i += n;
        }
    }
    join(&mut total, part);
    fold_group::<V, R>(total)
}

/// One value of the lanes of a group: lane i joins lane i + 32, then i + 16, …, then i + 1.
#[inline(always)]
fn fold_group<V: F32s, R: Reduction>(mut group: V::Group) -> f32 {
    let g = group.as_mut();
    let mut half = g.len();
    while half > 1 {
        half /= 2;
        for k in 0..half {
            g[k] = R::combine(g[k], g[k + half]);
        }
    }
    let mut lanes = [0.0f32; 16];
    // SAFETY: no vector has more than 16 lanes.
    unsafe { g[0].store(lanes.as_mut_ptr()) };
    let mut half = V::LANES;
    while half > 1 {
        half /= 2;
        for k in 0..half {
            lanes[k] = R::combine(Lane(lanes[k]), Lane(lanes[k + half])).0;
        }
    }
    lanes[0]
}

fn reduce_rows<'a, R>(x: &'a [f32], cols: usize, y: &mut [f32], of: impl Fn(&'a [f32]) -> R + Sync)
where
    R: Reduction + Body<Out = f32>,
{
    let rows = y.len();
    assert_eq!(x.len(), rows * cols, "reduce: input is not (rows, cols)");
    if cols <= LONG {
        let out = SharedMut::new(y);
        par_rows(rows, cols, |r| {
            // SAFETY: `par_rows` gives every row to exactly one call.
            let out = unsafe { out.range(r.clone()) };
            dispatch(Rows { x: &x[r.start * cols..r.end * cols], cols, y: out, of: &of });
        });
        return;
    }
    let pieces = cols.div_ceil(LONG);
    let mut partial = Scratch::filled(rows * pieces, 0.0);
    par_chunks_mut(&mut partial, 1, |i, out| {
        let (row, piece) = (i / pieces, i % pieces);
        let row = &x[row * cols..(row + 1) * cols];
        out[0] = dispatch(of(&row[piece * LONG..cols.min((piece + 1) * LONG)]));
    });
    for (y, partial) in y.iter_mut().zip(partial.chunks_exact(pieces)) {
        *y = fold_pairs::<R>(partial);
    }
}

fn fold_pairs<R: Reduction>(x: &[f32]) -> f32 {
    match x {
        [] => R::IDENTITY,
        [x] => *x,
        _ => {
            let (a, b) = x.split_at(x.len() / 2);
            R::combine(Lane(fold_pairs::<R>(a)), Lane(fold_pairs::<R>(b))).0
        }
    }
}

struct Rows<'a, 'b, F> {
    x: &'a [f32],
    cols: usize,
    y: &'b mut [f32],
    of: &'b F,
}

impl<'a, R: Reduction, F: Fn(&'a [f32]) -> R> Body for Rows<'a, '_, F> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, v: V) {
        for (row, y) in self.y.iter_mut().enumerate() {
            *y = reduce(v, (self.of)(&self.x[row * self.cols..(row + 1) * self.cols]));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{LONG, Sum, max, max_all, mean_and_variance, min, sum, sum_all, sum_of_squares};
    use crate::rows::testing::{close, same_on_threads, values};
    use crate::simd::{Isa, dispatch_on};

    type Kernel<'a> = &'a dyn Fn(&[f32], usize, &mut [f32]);

    #[test]
    fn reductions_agree_with_f64_at_every_width() {
        for cols in (1..=70).chain([128, 1000, 4096, 4097, 20_000, LONG + 1, 3 * LONG + 77]) {
            let rows = if cols > 1000 { 3 } else { 9 };
            let x = values(rows * cols, cols as u32);
            let each = |f: &dyn Fn(&[f32]) -> f64| x.chunks_exact(cols).map(f).collect::<Vec<f64>>();
            let run = |f: Kernel| {
                same_on_threads(|| {
                    let mut y = vec![0.0; rows];
                    f(&x, cols, &mut y);
                    y
                })
            };
            let total = |row: &[f32]| row.iter().map(|x| f64::from(*x)).sum::<f64>();
            let scale = 1e-6 * (cols as f64).sqrt().max(1.0);
            close(&run(&sum), &each(&total), scale);
            close(&run(&sum_of_squares), &each(&|r| r.iter().map(|x| f64::from(*x).powi(2)).sum()), 1e-6);
            close(&run(&max), &each(&|r| r.iter().fold(f64::NEG_INFINITY, |m, x| m.max(f64::from(*x)))), 0.0);
            close(&run(&min), &each(&|r| r.iter().fold(f64::INFINITY, |m, x| m.min(f64::from(*x)))), 0.0);
            let mean = |r: &[f32]| total(r) / cols as f64;
            let variance = |r: &[f32]| {
                let m = mean(r);
                r.iter().map(|x| (f64::from(*x) - m).powi(2)).sum::<f64>() / cols as f64
            };
            let both = |pick: usize| {
                run(&|x, cols, y| {
                    let mut out = [vec![0.0; y.len()], vec![0.0; y.len()]];
                    let [m, v] = &mut out;
                    mean_and_variance(x, cols, m, v);
                    y.copy_from_slice(&out[pick]);
                })
            };
            close(&both(0), &each(&mean), 1e-6);
            close(&both(1), &each(&variance), 1e-6);
        }
    }

    #[test]
    fn a_large_mean_does_not_spoil_the_variance() {
        let x: Vec<f32> = values(1000, 3).iter().map(|x| x + 4096.0).collect();
        let mean64 = x.iter().map(|x| f64::from(*x)).sum::<f64>() / 1000.0;
        let want = x.iter().map(|x| (f64::from(*x) - mean64).powi(2)).sum::<f64>() / 1000.0;
        let (mut m, mut v) = ([0.0], [0.0]);
        mean_and_variance(&x, 1000, &mut m, &mut v);
        close(&v, &[want], 1e-6);
    }

    #[test]
    fn empty_rows_and_nan() {
        let mut y = [1.0; 2];
        sum(&[], 0, &mut y);
        assert_eq!(y, [0.0; 2]);
        assert_eq!((sum_all(&[]), max_all(&[])), (0.0, f32::NEG_INFINITY));
        for n in [1, 7, 64, 65, 100, 5000] {
            for at in [0, n / 2, n - 1] {
                let mut x = values(n, 1);
                x[at] = f32::NAN;
                assert!(max_all(&x).is_nan() && sum_all(&x).is_nan(), "{n} {at}");
                min(&x, n, &mut y[..1]);
                assert!(y[0].is_nan());
            }
        }
    }

    #[test]
    fn every_instruction_set_sums_in_the_same_order() {
        for n in [0, 1, 9, 63, 64, 65, 1000, 4097, 30_000] {
            let x = values(n, 5);
            let want = dispatch_on(Isa::Scalar, Sum { x: &x });
            for isa in [Isa::Avx2, Isa::Avx512] {
                assert_eq!(dispatch_on(isa, Sum { x: &x }).to_bits(), want.to_bits(), "{n}");
            }
        }
    }
}
