//! The few vector operations that the matrix kernels are made of, for each instruction set.
//!
//! Methods are `inline(always)` and unsafe: they may be called only from code compiled for their
//! instruction set, that is, below a `target_feature` function. Intrinsics then inline into it.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256, __m256d, __m256i, __m512, __m512d, _mm256_fmadd_pd, _mm256_fmadd_ps, _mm256_loadu_pd,
    _mm256_loadu_ps, _mm256_loadu_si256, _mm256_maskload_pd, _mm256_maskload_ps, _mm256_maskstore_pd,
    _mm256_maskstore_ps, _mm256_set1_pd, _mm256_set1_ps, _mm256_storeu_pd, _mm256_storeu_ps, _mm512_fmadd_pd,
    _mm512_fmadd_ps, _mm512_loadu_pd, _mm512_loadu_ps, _mm512_mask_storeu_pd, _mm512_mask_storeu_ps,
    _mm512_maskz_loadu_pd, _mm512_maskz_loadu_ps, _mm512_set1_pd, _mm512_set1_ps, _mm512_storeu_pd,
    _mm512_storeu_ps,
};

#[cfg(target_arch = "aarch64")]
use std::arch::aarch64::{
    float32x4_t, float64x2_t, vdupq_n_f32, vdupq_n_f64, vfmaq_f32, vfmaq_f64, vld1q_f32, vld1q_f64,
    vst1q_f32, vst1q_f64,
};

/// `LANES` numbers in a register.
///
/// # Safety
/// Every method needs the instruction set of the implementing type. Loads and stores need `LANES`
/// valid elements at `at`, the `_first` forms only `n` of them, `n <= LANES`; no alignment.
pub(super) trait Vector: Copy {
    type Elem: super::Element;
    const LANES: usize;
    unsafe fn splat(x: Self::Elem) -> Self;
    unsafe fn load(at: *const Self::Elem) -> Self;
    unsafe fn store(self, at: *mut Self::Elem);
    /// Lanes from `n` on are zero and their memory is not read.
    unsafe fn load_first(at: *const Self::Elem, n: usize) -> Self;
    /// Memory of the lanes from `n` on is not written.
    unsafe fn store_first(self, at: *mut Self::Elem, n: usize);
    /// `self * factor + sum`.
    unsafe fn mul_add(self, factor: Self, sum: Self) -> Self;
}

/// Four lanes in plain Rust, which the compiler maps to the target's baseline (SSE2).
#[derive(Clone, Copy)]
pub(super) struct Plain<T>([T; 4]);

impl<T: super::Element> Vector for Plain<T> {
    type Elem = T;
    const LANES: usize = 4;

    #[inline(always)]
    unsafe fn splat(x: T) -> Self {
        Self([x; 4])
    }

    #[inline(always)]
    unsafe fn load(at: *const T) -> Self {
        // SAFETY: the caller gives four elements, and `[T; 4]` read unaligned is four elements.
        Self(unsafe { at.cast::<[T; 4]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn store(self, at: *mut T) {
        // SAFETY: as in `load`.
        unsafe { at.cast::<[T; 4]>().write_unaligned(self.0) };
    }

    #[inline(always)]
    unsafe fn load_first(at: *const T, n: usize) -> Self {
        // SAFETY: only lanes below `n` are read, which the caller gives.
        Self(std::array::from_fn(|lane| if lane < n { unsafe { at.add(lane).read() } } else { T::ZERO }))
    }

    #[inline(always)]
    unsafe fn store_first(self, at: *mut T, n: usize) {
        for lane in 0..n.min(4) {
            // SAFETY: only lanes below `n` are written, which the caller gives.
            unsafe { at.add(lane).write(self.0[lane]) };
        }
    }

    #[inline(always)]
    unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
        // Two roundings: without FMA hardware a fused multiply-add is a library call.
        Self(std::array::from_fn(|lane| self.0[lane] * factor.0[lane] + sum.0[lane]))
    }
}

/// Implements [`Vector`] by intrinsics of NEON, which has no masks: a part of a vector goes through memory.
#[cfg(target_arch = "aarch64")]
macro_rules! neon_vector {
    ($vector:ty, $elem:ty, $lanes:literal, $splat:ident, $load:ident, $store:ident, $fma:ident) => {
        impl Vector for $vector {
            type Elem = $elem;
            const LANES: usize = $lanes;

            #[inline(always)]
            unsafe fn splat(x: $elem) -> Self {
                // SAFETY: NEON is part of the target.
                unsafe { $splat(x) }
            }

            #[inline(always)]
            unsafe fn load(at: *const $elem) -> Self {
                // SAFETY: the caller gives `LANES` elements.
                unsafe { $load(at) }
            }

            #[inline(always)]
            unsafe fn store(self, at: *mut $elem) {
                // SAFETY: as in `load`.
                unsafe { $store(at, self) }
            }

            #[inline(always)]
            unsafe fn load_first(at: *const $elem, n: usize) -> Self {
                let mut lanes = [0.0; $lanes];
                // SAFETY: the caller gives `n <= LANES` elements, and `lanes` has room for all.
                unsafe {
                    std::ptr::copy_nonoverlapping(at, lanes.as_mut_ptr(), n);
                    $load(lanes.as_ptr())
                }
            }

            #[inline(always)]
            unsafe fn store_first(self, at: *mut $elem, n: usize) {
                let mut lanes = [0.0; $lanes];
                // SAFETY: as in `load_first`.
                unsafe {
                    $store(lanes.as_mut_ptr(), self);
                    std::ptr::copy_nonoverlapping(lanes.as_ptr(), at, n);
                }
            }

            #[inline(always)]
            unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
                // SAFETY: NEON is part of the target.
                unsafe { $fma(sum, self, factor) }
            }
        }
    };
}

#[cfg(target_arch = "aarch64")]
neon_vector!(float32x4_t, f32, 4, vdupq_n_f32, vld1q_f32, vst1q_f32, vfmaq_f32);
#[cfg(target_arch = "aarch64")]
neon_vector!(float64x2_t, f64, 2, vdupq_n_f64, vld1q_f64, vst1q_f64, vfmaq_f64);

/// Eight ones and eight zeros: a window of it is an AVX2 lane mask.
#[cfg(target_arch = "x86_64")]
static MASK_F32: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
#[cfg(target_arch = "x86_64")]
static MASK_F64: [i64; 8] = [-1, -1, -1, -1, 0, 0, 0, 0];

/// Implements [`Vector`] by intrinsics; the two blocks are `load_first` and `store_first`.
#[cfg(target_arch = "x86_64")]
macro_rules! x86_vector {
    (
        $vector:ty, $elem:ty, $lanes:literal, $splat:ident, $load:ident, $store:ident, $fma:ident,
        |$load_at:ident, $load_n:ident| $load_first:expr,
        |$value:ident, $store_at:ident, $store_n:ident| $store_first:expr
    ) => {
        impl Vector for $vector {
            type Elem = $elem;
            const LANES: usize = $lanes;

            #[inline(always)]
            unsafe fn splat(x: $elem) -> Self {
                // SAFETY: the caller has the instruction set.
                unsafe { $splat(x) }
            }

            #[inline(always)]
            unsafe fn load(at: *const $elem) -> Self {
                // SAFETY: the caller has the instruction set and gives `LANES` elements; unaligned form.
                unsafe { $load(at) }
            }

            #[inline(always)]
            unsafe fn store(self, at: *mut $elem) {
                // SAFETY: as in `load`.
                unsafe { $store(at, self) }
            }

            #[inline(always)]
            unsafe fn load_first($load_at: *const $elem, $load_n: usize) -> Self {
                // SAFETY: masked lanes are not accessed, and the mask has exactly the `n <= LANES`
                // lanes that the caller gives; the window into the mask table ends inside it.
                unsafe { $load_first }
            }

            #[inline(always)]
            unsafe fn store_first(self, $store_at: *mut $elem, $store_n: usize) {
                let $value = self;
                // SAFETY: as in `load_first`.
                unsafe { $store_first }
            }

            #[inline(always)]
            unsafe fn mul_add(self, factor: Self, sum: Self) -> Self {
                // SAFETY: the caller has the instruction set.
                unsafe { $fma(self, factor, sum) }
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
x86_vector!(
    __m256,
    f32,
    8,
    _mm256_set1_ps,
    _mm256_loadu_ps,
    _mm256_storeu_ps,
    _mm256_fmadd_ps,
    |at, n| _mm256_maskload_ps(at, mask_f32(n)),
    |value, at, n| _mm256_maskstore_ps(at, mask_f32(n), value)
);
#[cfg(target_arch = "x86_64")]
x86_vector!(
    __m256d,
    f64,
    4,
    _mm256_set1_pd,
    _mm256_loadu_pd,
    _mm256_storeu_pd,
    _mm256_fmadd_pd,
    |at, n| _mm256_maskload_pd(at, mask_f64(n)),
    |value, at, n| _mm256_maskstore_pd(at, mask_f64(n), value)
);
#[cfg(target_arch = "x86_64")]
x86_vector!(
    __m512,
    f32,
    16,
    _mm512_set1_ps,
    _mm512_loadu_ps,
    _mm512_storeu_ps,
    _mm512_fmadd_ps,
    |at, n| _mm512_maskz_loadu_ps(((1u32 << n) - 1) as u16, at),
    |value, at, n| _mm512_mask_storeu_ps(at, ((1u32 << n) - 1) as u16, value)
);
#[cfg(target_arch = "x86_64")]
x86_vector!(
    __m512d,
    f64,
    8,
    _mm512_set1_pd,
    _mm512_loadu_pd,
    _mm512_storeu_pd,
    _mm512_fmadd_pd,
    |at, n| _mm512_maskz_loadu_pd(((1u32 << n) - 1) as u8, at),
    |value, at, n| _mm512_mask_storeu_pd(at, ((1u32 << n) - 1) as u8, value)
);

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn mask_f32(n: usize) -> __m256i {
    // SAFETY: `n <= 8`, so the eight entries from `8 - n` on lie in the table; the caller has AVX2.
    unsafe { _mm256_loadu_si256(MASK_F32.as_ptr().add(8 - n).cast()) }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn mask_f64(n: usize) -> __m256i {
    // SAFETY: `n <= 4`, so the four entries from `4 - n` on lie in the table; the caller has AVX2.
    unsafe { _mm256_loadu_si256(MASK_F64.as_ptr().add(4 - n).cast()) }
}
