//! Four f32 lanes: NEON, which every aarch64 CPU has.
#![cfg(target_arch = "aarch64")]

use std::arch::aarch64 as arm;
use std::arch::asm;
use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Sub};

use crate::simd::vector::{F32s, GROUP, I32s};

/// Four f32.
#[derive(Clone, Copy)]
pub struct Lanes4(arm::float32x4_t);

/// Four i32.
#[derive(Clone, Copy)]
pub struct Lanes4I(arm::int32x4_t);

/// A method body that is one intrinsic.
macro_rules! one {
    ($e:expr) => {
        // SAFETY: NEON is part of the target, so that intrinsics ask for nothing but valid pointers, which are as the
        // method's contract says.
        unsafe { $e }
    };
}

macro_rules! op {
    ($ty:ident $tr:ident $f:ident $intrinsic:ident) => {
        impl $tr for $ty {
            type Output = Self;
            #[inline(always)]
            fn $f(self, other: Self) -> Self {
                $ty(one!(arm::$intrinsic(self.0, other.0)))
            }
        }
    };
}
op!(Lanes4 Add add vaddq_f32);
op!(Lanes4 Sub sub vsubq_f32);
op!(Lanes4 Mul mul vmulq_f32);
op!(Lanes4 Div div vdivq_f32);
op!(Lanes4I Add add vaddq_s32);
op!(Lanes4I Sub sub vsubq_s32);
op!(Lanes4I BitAnd bitand vandq_s32);
op!(Lanes4I BitOr bitor vorrq_s32);
op!(Lanes4I BitXor bitxor veorq_s32);

impl Neg for Lanes4 {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Lanes4(one!(arm::vnegq_f32(self.0)))
    }
}

impl I32s for Lanes4I {
    #[inline(always)]
    fn splat(self, v: i32) -> Self {
        Lanes4I(one!(arm::vdupq_n_s32(v)))
    }
    #[inline(always)]
    fn shl(self, n: i32) -> Self {
        Lanes4I(one!(arm::vshlq_s32(self.0, arm::vdupq_n_s32(n))))
    }
    #[inline(always)]
    fn shr(self, n: i32) -> Self {
        // A shift left by a negative number is one to the right, which keeps the sign.
        Lanes4I(one!(arm::vshlq_s32(self.0, arm::vdupq_n_s32(-n))))
    }
}

impl F32s for Lanes4 {
    const LANES: usize = 4;
    type I = Lanes4I;
    type M = arm::uint32x4_t;
    type Group = [Self; GROUP / 4];

    #[inline(always)]
    unsafe fn splat_new(v: f32) -> Self {
        Lanes4(one!(arm::vdupq_n_f32(v)))
    }
    #[inline(always)]
    unsafe fn load(p: *const f32) -> Self {
        Lanes4(one!(arm::vld1q_f32(p)))
    }
    #[inline(always)]
    unsafe fn store(self, p: *mut f32) {
        one!(arm::vst1q_f32(p, self.0))
    }
    #[inline(always)]
    unsafe fn load_n(p: *const f32, n: usize, pad: f32) -> Self {
        let mut lanes = [pad; 4];
        // SAFETY: the caller gives a `p` readable for this many.
        unsafe { std::ptr::copy_nonoverlapping(p, lanes.as_mut_ptr(), n.min(4)) };
        Lanes4(one!(arm::vld1q_f32(lanes.as_ptr())))
    }
    #[inline(always)]
    unsafe fn store_n(self, p: *mut f32, n: usize) {
        let mut lanes = [0.0; 4];
        one!(arm::vst1q_f32(lanes.as_mut_ptr(), self.0));
        // SAFETY: the caller gives a `p` writable for this many.
        unsafe { std::ptr::copy_nonoverlapping(lanes.as_ptr(), p, n.min(4)) };
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> Self {
        // By hand: the intrinsics of f16 are younger than the oldest compiler that we build with.
        let half = one!(arm::vld1_u16(p));
        let lanes: arm::float32x4_t;
        // SAFETY: one instruction of the target, from one register to another.
        unsafe {
            asm!("fcvtl {y:v}.4s, {x:v}.4h", y = lateout(vreg) lanes, x = in(vreg) half,
                options(pure, nomem, nostack, preserves_flags));
        }
        Lanes4(lanes)
    }
    #[inline(always)]
    unsafe fn store_f16(self, p: *mut u16) {
        let half: arm::uint16x4_t;
        // SAFETY: as in `load_f16`. It rounds as the control register says: to nearest, since nobody changes that.
        unsafe {
            asm!("fcvtn {y:v}.4h, {x:v}.4s", y = lateout(vreg) half, x = in(vreg) self.0,
                options(pure, nomem, nostack, preserves_flags));
        }
        one!(arm::vst1_u16(p, half))
    }
    #[inline(always)]
    unsafe fn store_past_cache(self, p: *mut f32) {
        // There is a hint to that end, for pairs of registers, but no intrinsic.
        one!(arm::vst1q_f32(p, self.0))
    }
    #[inline(always)]
    fn fence(self) {}
    #[inline(always)]
    fn splat(self, v: f32) -> Self {
        Lanes4(one!(arm::vdupq_n_f32(v)))
    }
    #[inline(always)]
    fn splat_i32(self, v: i32) -> Lanes4I {
        Lanes4I(one!(arm::vdupq_n_s32(v)))
    }
    #[inline(always)]
    fn group(self) -> Self::Group {
        [self; GROUP / 4]
    }
    #[inline(always)]
    fn mul_add(self, b: Self, c: Self) -> Self {
        Lanes4(one!(arm::vfmaq_f32(c.0, self.0, b.0)))
    }
    #[inline(always)]
    fn min(self, b: Self) -> Self {
        // Not `vminq`, which gives NaN where either is NaN, and the smaller of two zeros.
        b.or_where(self.lt(b), self)
    }
    #[inline(always)]
    fn max(self, b: Self) -> Self {
        b.or_where(b.lt(self), self)
    }
    #[inline(always)]
    fn sqrt(self) -> Self {
        Lanes4(one!(arm::vsqrtq_f32(self.0)))
    }
    #[inline(always)]
    fn round(self) -> Self {
        Lanes4(one!(arm::vrndnq_f32(self.0)))
    }
    #[inline(always)]
    fn abs(self) -> Self {
        Lanes4(one!(arm::vabsq_f32(self.0)))
    }
    #[inline(always)]
    fn lt(self, b: Self) -> Self::M {
        one!(arm::vcltq_f32(self.0, b.0))
    }
    #[inline(always)]
    fn eq(self, b: Self) -> Self::M {
        one!(arm::vceqq_f32(self.0, b.0))
    }
    #[inline(always)]
    fn is_nan(self) -> Self::M {
        one!(arm::vmvnq_u32(arm::vceqq_f32(self.0, self.0)))
    }
    #[inline(always)]
    fn or_where(self, m: Self::M, a: Self) -> Self {
        Lanes4(one!(arm::vbslq_f32(m, a.0, self.0)))
    }
    #[inline(always)]
    fn any(m: Self::M) -> bool {
        one!(arm::vmaxvq_u32(m)) != 0
    }
    #[inline(always)]
    fn swap_neighbours(self) -> Self {
        Lanes4(one!(arm::vrev64q_f32(self.0)))
    }
    #[inline(always)]
    fn double_first_half(self) -> Self {
        Lanes4(one!(arm::vzip1q_f32(self.0, self.0)))
    }
    #[inline(always)]
    fn to_bits(self) -> Lanes4I {
        Lanes4I(one!(arm::vreinterpretq_s32_f32(self.0)))
    }
    #[inline(always)]
    fn from_bits(i: Lanes4I) -> Self {
        Lanes4(one!(arm::vreinterpretq_f32_s32(i.0)))
    }
    #[inline(always)]
    fn to_i32(self) -> Lanes4I {
        Lanes4I(one!(arm::vcvtnq_s32_f32(self.0)))
    }
    #[inline(always)]
    fn from_i32(i: Lanes4I) -> Self {
        Lanes4(one!(arm::vcvtq_f32_s32(i.0)))
    }
}
