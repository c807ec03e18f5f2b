//! Eight f32 lanes: AVX2 with FMA.
#![cfg(target_arch = "x86_64")]

use std::arch::x86_64 as x86;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Sub};

use crate::simd::vector::{F32s, GROUP, I32s};

/// Eight f32.
#[derive(Clone, Copy)]
pub struct Lanes8(x86::__m256);

/// Eight i32.
#[derive(Clone, Copy)]
pub struct Lanes8I(x86::__m256i);

/// A method body that is one intrinsic.
macro_rules! one {
    ($e:expr) => {
        // SAFETY: a vector of this type is at hand or, in `splat_new` and `load`, promised by the caller;
        // it exists only where AVX2 does (see `vector`). Pointers are as the method's contract says.
        unsafe { $e }
    };
}

macro_rules! op {
    ($ty:ident $tr:ident $f:ident $intrinsic:ident) => {
        impl $tr for $ty {
            type Output = Self;
            #[inline(always)]
            fn $f(self, other: Self) -> Self {
                $ty(one!(x86::$intrinsic(self.0, other.0)))
            }
        }
    };
}
op!(Lanes8 Add add _mm256_add_ps);
op!(Lanes8 Sub sub _mm256_sub_ps);
op!(Lanes8 Mul mul _mm256_mul_ps);
op!(Lanes8 Div div _mm256_div_ps);
op!(Lanes8I Add add _mm256_add_epi32);
op!(Lanes8I Sub sub _mm256_sub_epi32);
op!(Lanes8I BitAnd bitand _mm256_and_si256);
op!(Lanes8I BitOr bitor _mm256_or_si256);
op!(Lanes8I BitXor bitxor _mm256_xor_si256);

impl Neg for Lanes8 {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Lanes8(one!(x86::_mm256_xor_ps(self.0, x86::_mm256_set1_ps(-0.0))))
    }
}

impl I32s for Lanes8I {
    #[inline(always)]
    fn splat(self, v: i32) -> Self {
        Lanes8I(one!(x86::_mm256_set1_epi32(v)))
    }
    #[inline(always)]
    fn shl(self, n: i32) -> Self {
        Lanes8I(one!(x86::_mm256_sllv_epi32(self.0, x86::_mm256_set1_epi32(n))))
    }
    #[inline(always)]
    fn shr(self, n: i32) -> Self {
        Lanes8I(one!(x86::_mm256_srav_epi32(self.0, x86::_mm256_set1_epi32(n))))
    }
}

impl F32s for Lanes8 {
    const LANES: usize = 8;
    type I = Lanes8I;
    type M = x86::__m256;
    type Group = [Self; GROUP / 8];

    #[inline(always)]
    unsafe fn splat_new(v: f32) -> Self {
        Lanes8(one!(x86::_mm256_set1_ps(v)))
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Lanes8(one!(x86::_mm256_loadu_ps(p)))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        one!(x86::_mm256_storeu_ps(p, self.0))
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize, pad: f32) -> Self {
        if n >= Self::LANES {
            return one!(Self::load(p));
        }
        let mask = one!(first(n));
        let lanes = one!(x86::_mm256_maskload_ps(p, mask));
        let pad = one!(x86::_mm256_set1_ps(pad));
        Lanes8(one!(x86::_mm256_blendv_ps(pad, lanes, x86::_mm256_castsi256_ps(mask))))
    }
    #[inline(always)]
    unsafe fn store_n(self, p: *mut f32, n: usize) {
        if n >= Self::LANES {
            return one!(self.store(p));
        }
        one!(x86::_mm256_maskstore_ps(p, first(n), self.0))
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        Lanes8(one!(x86::_mm256_cvtph_ps(x86::_mm_loadu_si128(p.cast()))))
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        let half = one!(x86::_mm256_cvtps_ph::<{ x86::_MM_FROUND_TO_NEAREST_INT }>(self.0));
        one!(x86::_mm_storeu_si128(p.cast(), half))
    }
    #[inline(always)]
    unsafe fn store_past_cache(self, p: *mut f32) {
        one!(x86::_mm256_stream_ps(p, self.0))
    }
    #[inline(always)]
    fn fence(self) {
        one!(x86::_mm_sfence())
    }
    #[inline(always)]
    fn splat(self, v: f32) -> Self {
        Lanes8(one!(x86::_mm256_set1_ps(v)))
    }
    #[inline(always)]
    fn splat_i32(self, v: i32) -> Lanes8I {
        Lanes8I(one!(x86::_mm256_set1_epi32(v)))
    }
    #[inline(always)]
    fn group(self) -> Self::Group {
        [self; GROUP / 8]
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Lanes8(one!(x86::_mm256_fmadd_ps(self.0, b.0, c.0)))
    }
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        Lanes8(one!(x86::_mm256_min_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        Lanes8(one!(x86::_mm256_max_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Lanes8(one!(x86::_mm256_sqrt_ps(self.0)))
    }
    #[inline(always)]
    fn round(self) -> Self {
        Lanes8(one!(x86::_mm256_round_ps::<{ x86::_MM_FROUND_TO_NEAREST_INT | x86::_MM_FROUND_NO_EXC }>(
            self.0
        )))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        Lanes8(one!(x86::_mm256_andnot_ps(x86::_mm256_set1_ps(-0.0), self.0)))
    }
    #[inline(always)]
    fn lt(self, b: Self) -> Self::M {
        one!(x86::_mm256_cmp_ps::<{ x86::_CMP_LT_OQ }>(self.0, b.0))
    }
    #[inline(always)]
    fn eq(self, b: Self) -> Self::M {
        one!(x86::_mm256_cmp_ps::<{ x86::_CMP_EQ_OQ }>(self.0, b.0))
    }
    #[inline(always)]
    fn is_nan(self) -> Self::M {
        one!(x86::_mm256_cmp_ps::<{ x86::_CMP_UNORD_Q }>(self.0, self.0))
    }
    #[inline(always)]
    fn or_where(self, m: Self::M, a: Self) -> Self {
        Lanes8(one!(x86::_mm256_blendv_ps(self.0, a.0, m)))
    }
    #[inline(always)]
    fn any(m: Self::M) -> bool {
        one!(x86::_mm256_movemask_ps(m)) != 0
    }
    #[inline(always)]
    fn swap_neighbours(self) -> Self {
        Lanes8(one!(x86::_mm256_permute_ps::<0b10_11_00_01>(self.0)))
    }
    #[inline(always)]
    fn double_first_half(self) -> Self {
        let twice = one!(x86::_mm256_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3));
        Lanes8(one!(x86::_mm256_permutevar8x32_ps(self.0, twice)))
    }
    #[inline(always)]
    fn to_bits(self) -> Lanes8I {
        Lanes8I(one!(x86::_mm256_castps_si256(self.0)))
    }
    #[inline(always)]
    fn from_bits(i: Lanes8I) -> Self {
        Lanes8(one!(x86::_mm256_castsi256_ps(i.0)))
    }
    #[inline(always)]
    fn to_i32(self) -> Lanes8I {
        Lanes8I(one!(x86::_mm256_cvtps_epi32(self.0)))
    }
    #[inline(always)]
    fn from_i32(i: Lanes8I) -> Self {
        Lanes8(one!(x86::_mm256_cvtepi32_ps(i.0)))
    }
}

/// All bits set in the first `n < 8` lanes.
#[inline(always)]
unsafe fn first(n: usize) -> x86::__m256i {
    let place = one!(x86::_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    one!(x86::_mm256_cmpgt_epi32(x86::_mm256_set1_epi32(n as i32), place))
}
