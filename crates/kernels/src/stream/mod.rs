//! Arithmetic, conversion, transposition and splitting of slices.
//!
//! Arithmetic and conversion are blocks: they run on the calling thread, and [`split`] spreads them over
//! the pool. Loops are plain Rust that the compiler vectorises once for each instruction set; a product
//! and a sum are never contracted, so results do not depend on the set.

pub mod arithmetic;
pub mod convert;
pub mod split;
pub mod transpose;
pub mod whole;

/// Asks for the cache line at `at`, which may be any address.
#[inline(always)]
pub(crate) fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it does not fault.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(at.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// Copies past the caches: for results that do not fit in them, which then cost no reading of old lines.
///
/// What was copied is there for other threads once this is dropped. A fence after each tile would keep the
/// next one from being computed while the memory takes this one in.
#[derive(Debug, Default)]
pub struct PastCaches {
    wrote: bool,
}

impl PastCaches {
    /// y = x. Panics when the lengths differ.
    pub fn copy(&mut self, x: &[f32], y: &mut [f32]) {
        assert_eq!(x.len(), y.len(), "stream: input and output differ in length");
        self.wrote = true;
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::x86_64::{_mm_loadu_ps, _mm_stream_ps};
            let lead = y.as_ptr().align_offset(16).min(y.len());
            let (head, body) = y.split_at_mut(lead);
            head.copy_from_slice(&x[..lead]);
            let mut quads = body.chunks_exact_mut(4);
            let mut from = x[lead..].chunks_exact(4);
            for (y, x) in quads.by_ref().zip(from.by_ref()) {
                // SAFETY: four elements each; `y` is aligned to 16 bytes, since its first quad is.
                unsafe { _mm_stream_ps(y.as_mut_ptr(), _mm_loadu_ps(x.as_ptr())) };
            }
            quads.into_remainder().copy_from_slice(from.remainder());
        }
        #[cfg(not(target_arch = "x86_64"))]
        y.copy_from_slice(x);
    }
}

impl Drop for PastCaches {
    fn drop(&mut self) {
        #[cfg(target_arch = "x86_64")]
        if self.wrote {
            // SAFETY: part of every x86-64. The stores become visible to other threads before what follows.
            unsafe { std::arch::x86_64::_mm_sfence() };
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_copy_past_the_caches_is_a_copy_at_every_place_and_length() {
        let x: Vec<f32> = (0..100).map(|i| i as f32).collect();
        for start in 0..9 {
            for n in 0..=70 {
                let mut y = vec![-1.0; 100];
                super::PastCaches::default().copy(&x[start..start + n], &mut y[start..start + n]);
                let want = |i: usize| if (start..start + n).contains(&i) { i as f32 } else { -1.0 };
                assert!(y.iter().enumerate().all(|(i, y)| *y == want(i)), "{n} from {start}");
            }
        }
    }
}
