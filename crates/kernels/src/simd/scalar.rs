//! One f32 as a vector of one lane: the fallback, and the twin that tests compare the others with.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Sub};

use crate::simd::vector::{F32s, GROUP, I32s};

/// One f32.
#[derive(Clone, Copy)]
pub struct Lane(pub f32);

/// One i32.
#[derive(Clone, Copy)]
pub struct LaneI(i32);

macro_rules! op {
    ($ty:ident $tr:ident $f:ident |$a:ident, $b:ident| $e:expr) => {
        impl $tr for $ty {
            type Output = Self;
            #[inline(always)]
            fn $f(self, other: Self) -> Self {
                let ($a, $b) = (self.0, other.0);
                $ty($e)
            }
        }
    };
}
op!(Lane Add add |a, b| a + b);
op!(Lane Sub sub |a, b| a - b);
op!(Lane Mul mul |a, b| a * b);
op!(Lane Div div |a, b| a / b);
op!(LaneI Add add |a, b| a.wrapping_add(b));
op!(LaneI Sub sub |a, b| a.wrapping_sub(b));
op!(LaneI BitAnd bitand |a, b| a & b);
op!(LaneI BitOr bitor |a, b| a | b);
op!(LaneI BitXor bitxor |a, b| a ^ b);

impl Neg for Lane {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Lane(-self.0)
    }
}

impl I32s for LaneI {
    #[inline(always)]
    fn splat(self, v: i32) -> Self {
        LaneI(v)
    }
    #[inline(always)]
    fn shl(self, n: i32) -> Self {
        LaneI(self.0 << n)
    }
    #[inline(always)]
    fn shr(self, n: i32) -> Self {
        LaneI(self.0 >> n)
    }
}

impl F32s for Lane {
    const LANES: usize = 1;
    type I = LaneI;
    type M = bool;
    type Group = [Self; GROUP];

    #[inline(always)]
    unsafe fn splat_new(v: f32) -> Self {
        Lane(v)
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        // SAFETY: the caller gives a readable `p`.
        Lane(unsafe { *p })
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        // SAFETY: the caller gives a writable `p`.
        unsafe { *p = self.0 }
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize, pad: f32) -> Self {
        // SAFETY: the caller gives a `p` readable for one f32 unless `n` is 0.
        if n == 0 { Lane(pad) } else { Lane(unsafe { *p }) }
    }
    #[inline(always)]
    unsafe fn store_n(self, p: *mut f32, n: usize) {
        if n > 0 {
            // SAFETY: the caller gives a `p` writable for one f32 unless `n` is 0.
            unsafe { *p = self.0 }
        }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // SAFETY: the caller gives a readable `p`.
        Lane(half::f16::from_bits(unsafe { *p }).to_f32())
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        // SAFETY: the caller gives a writable `p`.
        unsafe { *p = half::f16::from_f32(self.0).to_bits() }
    }
    #[inline(always)]
    unsafe fn store_past_cache(self, p: *mut f32) {
        // SAFETY: the caller gives a writable `p`.
        unsafe { *p = self.0 }
    }
    #[inline(always)]
    fn fence(self) {}
    #[inline(always)]
    fn splat(self, v: f32) -> Self {
        Lane(v)
    }
    #[inline(always)]
    fn splat_i32(self, v: i32) -> LaneI {
        LaneI(v)
    }
    #[inline(always)]
    fn group(self) -> Self::Group {
        [self; GROUP]
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Lane(self.0.mul_add(b.0, c.0))
    }
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        if self.0 < b.0 { self } else { b }
    }
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        if self.0 > b.0 { self } else { b }
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Lane(self.0.sqrt())
    }
    #[inline(always)]
    fn round(self) -> Self {
        Lane(self.0.round_ties_even())
    }
    #[inline(always)]
    fn abs(self) -> Self {
        Lane(self.0.abs())
    }
    #[inline(always)]
    fn lt(self, b: Self) -> bool {
        self.0 < b.0
    }
    #[inline(always)]
    fn eq(self, b: Self) -> bool {
        self.0 == b.0
    }
    #[inline(always)]
    fn is_nan(self) -> bool {
        self.0.is_nan()
    }
    #[inline(always)]
    fn or_where(self, m: bool, a: Self) -> Self {
        if m { a } else { self }
    }
    #[inline(always)]
    fn any(m: bool) -> bool {
        m
    }
    #[inline(always)]
    fn swap_neighbours(self) -> Self {
        self
    }
    #[inline(always)]
    fn double_first_half(self) -> Self {
        self
    }
    #[inline(always)]
    fn to_bits(self) -> LaneI {
        LaneI(self.0.to_bits().cast_signed())
    }
    #[inline(always)]
    fn from_bits(i: LaneI) -> Self {
        Lane(f32::from_bits(i.0.cast_unsigned()))
    }
    #[inline(always)]
    fn to_i32(self) -> LaneI {
        LaneI(self.0.round_ties_even() as i32)
    }
    #[inline(always)]
    fn from_i32(i: LaneI) -> Self {
        Lane(i.0 as f32)
    }
}
