//! Threaded kernels over f32 rows: reductions, softmax, norms, and pooling over planes.
//!
//! A matrix is row-major `(rows, cols)`, given as a slice and `cols`. Every sum has one fixed order, in
//! [`GROUP`](crate::simd::vector::GROUP) lanes and fixed blocks: neither the number of threads nor the
//! instruction set changes a bit of a result. Functions panic when lengths do not fit each other.

/// Runs `$body` for each vector of `0..$n`, `$i` the first element and `$k` how many are valid.
macro_rules! each_vector {
    ($V:ty, $n:expr, |$i:ident, $k:ident| $body:block) => {{
        let n: usize = $n;
        let mut $i = 0;
        while $i + <$V>::LANES <= n {
            let $k = <$V>::LANES;
            $body
            $i += <$V>::LANES;
        }
        if $i < n {
            let $k = n - $i;
            $body
        }
    }};
}

pub mod axis;
pub mod batch;
pub mod norm;
pub mod norm_backward;
pub mod pool;
pub mod reduce;
pub mod softmax;

use std::ops::Range;

use crate::stream::split::{GRAIN, par_chunks};

/// Calls `f` with ranges of rows, each of about [`GRAIN`] elements, on all threads.
fn par_rows(rows: usize, cols: usize, f: impl Fn(Range<usize>) + Sync) {
    par_chunks(rows, (GRAIN / 4 / cols.max(1)).max(1), f);
}

#[cfg(test)]
pub(crate) mod testing {
    use crate::threads;

    /// `n` values in about ±4, the same for the same seed.
    pub fn values(n: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(747_796_405).wrapping_add(1);
        (0..n)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (state >> 8) as f32 / (1 << 21) as f32 - 4.0
            })
            .collect()
    }

    /// Asserts that each is within `tolerance` of the other, relative to `1 + |want|`.
    #[track_caller]
    pub fn close(got: &[f32], want: &[f64], tolerance: f64) {
        assert_eq!(got.len(), want.len());
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            let near = (f64::from(*g) - w).abs() <= tolerance * (1.0 + w.abs());
            assert!(near || (g.is_nan() && w.is_nan()) || f64::from(*g) == *w, "{i}: {g} is not {w}");
        }
    }

    /// Runs `f` with one and with two threads and asserts equal bits.
    #[track_caller]
    pub fn same_on_threads(f: impl Fn() -> Vec<f32>) -> Vec<f32> {
        let before = threads::threads();
        threads::set_threads(1);
        let one = f();
        threads::set_threads(2);
        let two = f();
        threads::set_threads(before);
        assert!(one.iter().zip(&two).all(|(a, b)| a.to_bits() == b.to_bits()), "threads change bits");
        one
    }
}
