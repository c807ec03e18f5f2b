//! Sixteen f32 lanes: AVX-512.
#![cfg(target_arch = "x86_64")]

use std::arch::x86_64 as x86;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Sub};

use crate::simd::vector::{F32s, GROUP, I32s};

/// Sixteen f32.
#[derive(Clone, Copy)]
pub struct Lanes16(x86::__m512);

/// Sixteen i32.
#[derive(Clone, Copy)]
pub struct Lanes16I(x86::__m512i);

/// A method body that is one intrinsic.
macro_rules! one {
    ($e:expr) => {
        // SAFETY: a vector of this type is at hand or, in `splat_new` and `load`, promised by the caller;
        // it exists only where AVX-512 does (see `vector`). Pointers are as the method's contract says.
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
op!(Lanes16 Add add _mm512_add_ps);
op!(Lanes16 Sub sub _mm512_sub_ps);
op!(Lanes16 Mul mul _mm512_mul_ps);
op!(Lanes16 Div div _mm512_div_ps);
op!(Lanes16I Add add _mm512_add_epi32);
op!(Lanes16I Sub sub _mm512_sub_epi32);
op!(Lanes16I BitAnd bitand _mm512_and_si512);
op!(Lanes16I BitOr bitor _mm512_or_si512);
op!(Lanes16I BitXor bitxor _mm512_xor_si512);

impl Neg for Lanes16 {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Lanes16(one!(x86::_mm512_xor_ps(self.0, x86::_mm512_set1_ps(-0.0))))
    }
}

impl I32s for Lanes16I {
    #[inline(always)]
    fn splat(self, v: i32) -> Self {
        Lanes16I(one!(x86::_mm512_set1_epi32(v)))
    }
    #[inline(always)]
    fn shl(self, n: i32) -> Self {
        Lanes16I(one!(x86::_mm512_sllv_epi32(self.0, x86::_mm512_set1_epi32(n))))
    }
    #[inline(always)]
    fn shr(self, n: i32) -> Self {
        Lanes16I(one!(x86::_mm512_srav_epi32(self.0, x86::_mm512_set1_epi32(n))))
    }
}

impl F32s for Lanes16 {
    const LANES: usize = 16;
    type I = Lanes16I;
    type M = x86::__mmask16;
    type Group = [Self; GROUP / 16];

    #[inline(always)]
    unsafe fn splat_new(v: f32) -> Self {
        Lanes16(one!(x86::_mm512_set1_ps(v)))
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Lanes16(one!(x86::_mm512_loadu_ps(p)))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        one!(x86::_mm512_storeu_ps(p, self.0))
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize, pad: f32) -> Self {
        Lanes16(one!(x86::_mm512_mask_loadu_ps(x86::_mm512_set1_ps(pad), first(n), p)))
    }
    #[inline(always)]
    unsafe fn store_n(self, p: *mut f32, n: usize) {
        one!(x86::_mm512_mask_storeu_ps(p, first(n), self.0))
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        Lanes16(one!(x86::_mm512_cvtph_ps(x86::_mm256_loadu_si256(p.cast()))))
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        let half = one!(x86::_mm512_cvtps_ph::<{ x86::_MM_FROUND_TO_NEAREST_INT }>(self.0));
        one!(x86::_mm256_storeu_si256(p.cast(), half))
    }
    #[inline(always)]
    unsafe fn store_past_cache(self, p: *mut f32) {
        one!(x86::_mm512_stream_ps(p, self.0))
    }
    #[inline(always)]
    fn fence(self) {
        one!(x86::_mm_sfence())
    }
    #[inline(always)]
    fn splat(self, v: f32) -> Self {
        Lanes16(one!(x86::_mm512_set1_ps(v)))
    }
    #[inline(always)]
    fn splat_i32(self, v: i32) -> Lanes16I {
        Lanes16I(one!(x86::_mm512_set1_epi32(v)))
    }
    #[inline(always)]
    fn group(self) -> Self::Group {
        [self; GROUP / 16]
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Lanes16(one!(x86::_mm512_fmadd_ps(self.0, b.0, c.0)))
    }
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        Lanes16(one!(x86::_mm512_min_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        Lanes16(one!(x86::_mm512_max_ps(self.0, b.0)))
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Lanes16(one!(x86::_mm512_sqrt_ps(self.0)))
    }
    #[inline(always)]
    fn round(self) -> Self {
        Lanes16(one!(
            x86::_mm512_roundscale_ps::<{ x86::_MM_FROUND_TO_NEAREST_INT | x86::_MM_FROUND_NO_EXC }>(self.0)
        ))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        Lanes16(one!(x86::_mm512_abs_ps(self.0)))
    }
    #[inline(always)]
    fn lt(self, b: Self) -> Self::M {
        one!(x86::_mm512_cmp_ps_mask::<{ x86::_CMP_LT_OQ }>(self.0, b.0))
    }
    #[inline(always)]
    fn eq(self, b: Self) -> Self::M {
        one!(x86::_mm512_cmp_ps_mask::<{ x86::_CMP_EQ_OQ }>(self.0, b.0))
    }
    #[inline(always)]
    fn is_nan(self) -> Self::M {
        one!(x86::_mm512_cmp_ps_mask::<{ x86::_CMP_UNORD_Q }>(self.0, self.0))
    }
    #[inline(always)]
    fn or_where(self, m: Self::M, a: Self) -> Self {
        Lanes16(one!(x86::_mm512_mask_blend_ps(m, self.0, a.0)))
    }
    #[inline(always)]
    fn any(m: Self::M) -> bool {
        m != 0
    }
    #[inline(always)]
    fn swap_neighbours(self) -> Self {
        Lanes16(one!(x86::_mm512_permute_ps::<0b10_11_00_01>(self.0)))
    }
    #[inline(always)]
    fn double_first_half(self) -> Self {
        let twice = one!(x86::_mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7));
        Lanes16(one!(x86::_mm512_permutexvar_ps(twice, self.0)))
    }
    #[inline(always)]
    fn to_bits(self) -> Lanes16I {
        Lanes16I(one!(x86::_mm512_castps_si512(self.0)))
    }
    #[inline(always)]
    fn from_bits(i: Lanes16I) -> Self {
        Lanes16(one!(x86::_mm512_castsi512_ps(i.0)))
    }
    #[inline(always)]
    fn to_i32(self) -> Lanes16I {
        Lanes16I(one!(x86::_mm512_cvtps_epi32(self.0)))
    }
    #[inline(always)]
    fn from_i32(i: Lanes16I) -> Self {
        Lanes16(one!(x86::_mm512_cvtepi32_ps(i.0)))
    }
}

/// The mask of the first `n` lanes.
#[inline(always)]
fn first(n: usize) -> x86::__mmask16 {
    if n >= 16 { !0 } else { (1 << n) - 1 }
}
