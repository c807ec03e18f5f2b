//! The operations that every vector of f32 lanes has.
//!
//! A vector is its own permission: the only ways to make one out of nothing are `unsafe` and ask for its
//! instruction set, and all else takes a vector. Holding one thus proves that its instructions exist,
//! and arithmetic is safe to call.
//!
//! Each operation gives the same bits on every instruction set, except which NaN it returns.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul, Neg, Sub};

/// Lanes of a reduction, on every instruction set: sums then associate alike whatever the width.
pub const GROUP: usize = 64;

/// A vector of f32 lanes.
pub trait F32s:
    Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> + Neg<Output = Self>
{
    /// How many lanes.
    const LANES: usize;
    /// The vector of as many i32 lanes.
    type I: I32s;
    /// One truth value per lane.
    type M: Copy;
    /// Vectors of [`GROUP`] lanes in all, an array.
    type Group: Copy + AsRef<[Self]> + AsMut<[Self]>;

    /// All lanes `v`, out of nothing.
    ///
    /// # Safety
    /// This CPU must have the instruction set of the type.
    unsafe fn splat_new(v: f32) -> Self;
    /// The lanes at `p`.
    ///
    /// # Safety
    /// `p` must be readable for `LANES` f32, and this CPU must have the instruction set of the type.
    unsafe fn load(p: *const f32) -> Self;
    /// Writes the lanes to `p`.
    ///
    /// # Safety
    /// `p` must be writable for `LANES` f32.
    unsafe fn store(self, p: *mut f32);
    /// The first `n` lanes from `p`, the others `pad`.
    ///
    /// # Safety
    /// `p` must be readable for `min(n, LANES)` f32, and this CPU must have the type's instruction set.
    unsafe fn load_n(p: *const f32, n: usize, pad: f32) -> Self;
    /// Writes the first `n` lanes to `p`.
    ///
    /// # Safety
    /// `p` must be writable for `min(n, LANES)` f32.
    unsafe fn store_n(self, p: *mut f32, n: usize);
    /// The f16 lanes at `p`, given by their bits.
    ///
    /// # Safety
    /// `p` must be readable for `LANES` u16, and this CPU must have the instruction set of the type.
    unsafe fn load_f16(p: *const u16) -> Self;
    /// Writes the lanes to `p` as the bits of the nearest f16, ties to even.
    ///
    /// # Safety
    /// `p` must be writable for `LANES` u16.
    unsafe fn store_f16(self, p: *mut u16);
    /// Writes the lanes to `p` past the caches. The thread must call [`F32s::fence`] before others read.
    ///
    /// # Safety
    /// As [`F32s::store`], and `p` must be aligned to the size of the vector.
    unsafe fn store_past_cache(self, p: *mut f32);
    /// Orders all that [`F32s::store_past_cache`] wrote before what follows.
    fn fence(self);

    /// All lanes `v`.
    fn splat(self, v: f32) -> Self;
    /// All lanes `v`, as integers.
    fn splat_i32(self, v: i32) -> Self::I;
    /// This vector in all of a group.
    fn group(self) -> Self::Group;
    /// `self * b + c`, rounded once.
    fn mul_add(self, b: Self, c: Self) -> Self;
    /// `if self < b { self } else { b }`: where either is NaN, `b`.
    fn min(self, b: Self) -> Self;
    /// `if self > b { self } else { b }`: where either is NaN, `b`.
    fn max(self, b: Self) -> Self;
    /// Square root, correctly rounded.
    fn sqrt(self) -> Self;
    /// Nearest integer, ties to even.
    fn round(self) -> Self;
    /// Magnitude; clears the sign bit, of NaN too.
    fn abs(self) -> Self;
    /// `self < b`.
    fn lt(self, b: Self) -> Self::M;
    /// `self == b`.
    fn eq(self, b: Self) -> Self::M;
    /// Whether the lane is NaN.
    fn is_nan(self) -> Self::M;
    /// `a` where the mask holds, `self` elsewhere.
    fn or_where(self, m: Self::M, a: Self) -> Self;
    /// Whether the mask holds in any lane.
    fn any(m: Self::M) -> bool;
    /// Each even lane and the odd one behind it change places. A lone lane stays.
    fn swap_neighbours(self) -> Self;
    /// Each lane of the first half twice, side by side. A lone lane stays.
    fn double_first_half(self) -> Self;
    /// The bits of each lane.
    fn to_bits(self) -> Self::I;
    /// The f32 with those bits.
    fn from_bits(i: Self::I) -> Self;
    /// Nearest integer; unspecified for NaN and outside of i32.
    fn to_i32(self) -> Self::I;
    /// The integer as f32, rounded to nearest.
    fn from_i32(i: Self::I) -> Self;

    /// The magnitude of `self`, which must not be negative, with the sign of `sign`.
    #[inline(always)]
    fn with_sign(self, sign: Self) -> Self {
        let bit = self.splat_i32(i32::MIN);
        Self::from_bits(self.to_bits() | (sign.to_bits() & bit))
    }

    /// The larger, or NaN where either is NaN.
    #[inline(always)]
    fn max_or_nan(self, b: Self) -> Self {
        self.max(b).or_where(self.is_nan(), self)
    }

    /// The smaller, or NaN where either is NaN.
    #[inline(always)]
    fn min_or_nan(self, b: Self) -> Self {
        self.min(b).or_where(self.is_nan(), self)
    }
}

/// A vector of i32 lanes; arithmetic wraps.
pub trait I32s:
    Copy
    + Add<Output = Self>
    + Sub<Output = Self>
    + BitAnd<Output = Self>
    + BitOr<Output = Self>
    + BitXor<Output = Self>
{
    /// All lanes `v`.
    fn splat(self, v: i32) -> Self;
    /// Shift left by `n < 32`.
    fn shl(self, n: i32) -> Self;
    /// Shift right by `n < 32`, keeping the sign.
    fn shr(self, n: i32) -> Self;
}
