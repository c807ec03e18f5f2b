//! Conversions between element types, in blocks.
//!
//! Floats to integers truncate and saturate, NaN becomes 0; anything to bool asks whether it is not zero;
//! floats narrow to the nearest, ties to even. Panics when lengths differ.

use half::{bf16, f16};

use crate::simd::vector::F32s;
use crate::simd::{Body, dispatch};
use crate::stream::arithmetic::map;

/// A value that converts to `B`.
pub trait CastTo<B>: Copy {
    /// The value as a `B`.
    fn cast_to(self) -> B;
}

/// `y[i] = x[i]` as the other type. For f16 to and from f32 the two functions below are faster.
pub fn cast<A: CastTo<B>, B>(x: &[A], y: &mut [B]) {
    map(x, y, A::cast_to);
}

/// y = x, f16 as f32.
pub fn f16_to_f32(x: &[f16], y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "convert: input and output differ in length");
    dispatch(Widen { x, y });
}

/// y = x, f32 to the nearest f16.
pub fn f32_to_f16(x: &[f32], y: &mut [f16]) {
    assert_eq!(x.len(), y.len(), "convert: input and output differ in length");
    dispatch(Narrow { x, y });
}

macro_rules! casts {
    (@to $a:ty: $($b:ty)*) => {$(
        impl CastTo<$b> for $a {
            #[inline(always)]
            #[allow(clippy::unnecessary_cast, reason = "the table holds each type with itself")]
            fn cast_to(self) -> $b { self as $b }
        }
    )*};
    ($($a:ty)*) => {$(
        casts!(@to $a: f32 f64 i32 i64 u8);
        impl CastTo<bool> for $a {
            #[inline(always)]
            fn cast_to(self) -> bool { self != 0 as $a }
        }
        impl CastTo<$a> for bool {
            #[inline(always)]
            fn cast_to(self) -> $a { u8::from(self) as $a }
        }
    )*};
}
casts!(f32 f64 i32 i64 u8);

impl CastTo<bool> for bool {
    #[inline(always)]
    fn cast_to(self) -> bool {
        self
    }
}

macro_rules! half_casts {
    ($h:ty, $to:expr, $from:expr, $from64:expr) => {
        half_casts!(@each $h, $to, $from, i32 i64 u8 bool f32);
        impl CastTo<f64> for $h {
            #[inline(always)]
            fn cast_to(self) -> f64 { f64::from($to(self)) }
        }
        impl CastTo<$h> for f64 {
            #[inline(always)]
            fn cast_to(self) -> $h { $from64(self) }
        }
        impl CastTo<$h> for $h {
            #[inline(always)]
            fn cast_to(self) -> $h { self }
        }
    };
    (@each $h:ty, $to:expr, $from:expr, $($t:ty)*) => {$(
        impl CastTo<$t> for $h {
            #[inline(always)]
            fn cast_to(self) -> $t { $to(self).cast_to() }
        }
        impl CastTo<$h> for $t {
            #[inline(always)]
            fn cast_to(self) -> $h { $from(self.cast_to()) }
        }
    )*};
}
half_casts!(f16, f16::to_f32, f16::from_f32, f16::from_f64);
half_casts!(bf16, widen_bf16, narrow_bf16, bf16::from_f64);

impl CastTo<bf16> for f16 {
    #[inline(always)]
    fn cast_to(self) -> bf16 {
        narrow_bf16(self.to_f32())
    }
}

impl CastTo<f16> for bf16 {
    #[inline(always)]
    fn cast_to(self) -> f16 {
        f16::from_f32(widen_bf16(self))
    }
}

/// The upper half of an f32; `half`'s own has a branch for NaN that stops vectorisation.
#[inline(always)]
fn widen_bf16(x: bf16) -> f32 {
    f32::from_bits(u32::from(x.to_bits()) << 16)
}

/// Rounds by adding half of the dropped range, less one unless the kept part is odd; NaN is made quiet.
#[inline(always)]
fn narrow_bf16(x: f32) -> bf16 {
    let bits = x.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    bf16::from_bits(if x.is_nan() { bits >> 16 | 0x40 } else { rounded } as u16)
}

struct Widen<'a> {
    x: &'a [f16],
    y: &'a mut [f32],
}

impl Body for Widen<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        let whole = self.x.len() - self.x.len() % V::LANES;
        for i in (0..whole).step_by(V::LANES) {
            // SAFETY: `i + LANES <= whole`, at most the length of both; f16 is a transparent u16.
            unsafe { V::load_f16(self.x.as_ptr().add(i).cast()).store(self.y.as_mut_ptr().add(i)) };
        }
        for (y, x) in self.y[whole..].iter_mut().zip(&self.x[whole..]) {
            *y = x.to_f32();
        }
    }
}

struct Narrow<'a> {
    x: &'a [f32],
    y: &'a mut [f16],
}

impl Body for Narrow<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        let whole = self.x.len() - self.x.len() % V::LANES;
        for i in (0..whole).step_by(V::LANES) {
            // SAFETY: `i + LANES <= whole`, at most the length of both; f16 is a transparent u16.
            unsafe { V::load(self.x.as_ptr().add(i)).store_f16(self.y.as_mut_ptr().add(i).cast()) };
        }
        for (y, x) in self.y[whole..].iter_mut().zip(&self.x[whole..]) {
            *y = f16::from_f32(*x);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{cast, f16_to_f32, f32_to_f16};
    use half::{bf16, f16};

    #[test]
    fn every_f16_survives_the_way_to_f32_and_back() {
        let x: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let (mut wide, mut back) = (vec![0.0f32; x.len()], vec![f16::ZERO; x.len()]);
        f16_to_f32(&x, &mut wide);
        f32_to_f16(&wide, &mut back);
        for ((x, w), b) in x.iter().zip(&wide).zip(&back) {
            assert!(w.to_bits() == x.to_f32().to_bits() || x.is_nan() && w.is_nan());
            assert!(b.to_bits() == x.to_bits() || x.is_nan() && b.is_nan());
        }
    }

    #[test]
    fn narrowing_rounds_to_nearest_even() {
        let x: Vec<f32> = (0..=u32::MAX).step_by(4093).map(f32::from_bits).collect();
        for n in [x.len(), 0, 1, 7, 8, 9, 31] {
            let (mut h, mut b) = (vec![f16::ZERO; n], vec![bf16::ZERO; n]);
            f32_to_f16(&x[..n], &mut h);
            cast(&x[..n], &mut b);
            for ((x, h), b) in x.iter().zip(&h).zip(&b) {
                assert!(h.to_bits() == f16::from_f32(*x).to_bits() || x.is_nan() && h.is_nan(), "{x}");
                assert_eq!(b.to_bits(), bf16::from_f32(*x).to_bits(), "{x}");
            }
        }
    }

    #[test]
    fn casts_truncate_saturate_and_test_for_zero() {
        let x = [1.9f32, -1.9, 3e10, f32::NAN, 0.0, -0.0];
        let (mut i, mut b, mut u) = ([0i32; 6], [false; 6], [0u8; 6]);
        cast(&x, &mut i);
        assert_eq!(i, [1, -1, i32::MAX, 0, 0, 0]);
        cast(&x, &mut u);
        assert_eq!(u, [1, 0, 255, 0, 0, 0]);
        cast(&x, &mut b);
        assert_eq!(b, [true, true, true, true, false, false]);
        let mut f = [0.0f32; 6];
        cast(&b, &mut f);
        assert_eq!(f, [1.0, 1.0, 1.0, 1.0, 0.0, 0.0]);
    }
}
