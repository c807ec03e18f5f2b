//! log and what is made of it, on vectors.
//!
//! All split x = 2ⁱ (1 + m) with 1 + m in [2/3, 4/3] and evaluate a polynomial in m.

use std::f64::consts;

use crate::math::exponential::exp;
use crate::simd::vector::{F32s, I32s};

/// The bits of 2/3: subtracting them carries into the exponent where the mantissa passes 4/3.
const TWO_THIRDS: i32 = 0x3f2a_aaab;
/// The bits of the sign and exponent.
const EXPONENT: i32 = 0xff80_0000_u32.cast_signed();

/// Constants in two parts; the first of log₁₀ 2 is short, so that i times it is exact.
const LOG2_E: f32 = consts::LOG2_E as f32;
const LOG2_E_LOW: f32 = (consts::LOG2_E - LOG2_E as f64) as f32;
const LOG10_E: f32 = consts::LOG10_E as f32;
const LOG10_E_LOW: f32 = (consts::LOG10_E - LOG10_E as f64) as f32;
const LOG10_2: f32 = 3.010_292e-1;
const LOG10_2_LOW: f32 = (consts::LOG10_2 - LOG10_2 as f64) as f32;

/// log(1 + m) for |m| ≤ 1/3.
#[inline(always)]
fn log1p_core<V: F32s>(m: V) -> V {
    let c = |v| m.splat(v);
    let s = m * m;
    // Coefficients by N. Juffa, "logf with at most 0.85 ulp error"; two interleaved chains.
    let even = c(-0.130_310_06).mul_add(s, c(-0.121_483_51));
    let even = even.mul_add(s, c(-0.166_846_13));
    let even = even.mul_add(s, c(-0.249_996_2));
    let odd = c(0.140_869_14).mul_add(s, c(0.139_814_85));
    let odd = odd.mul_add(s, c(0.200_120_35));
    let r = odd.mul_add(m, even);
    let r = r.mul_add(m, c(0.333_331_97));
    let r = r.mul_add(m, c(-0.5));
    r.mul_add(s, m)
}

/// `(i, m)` with x = 2ⁱ (1 + m), for finite x > 0.
#[inline(always)]
fn split<V: F32s>(x: V) -> (V, V) {
    let tiny = x.lt(x.splat(f32::MIN_POSITIVE));
    let normal = x.or_where(tiny, x * x.splat(8_388_608.0));
    let bits = normal.to_bits();
    let e = (bits - bits.splat(TWO_THIRDS)) & bits.splat(EXPONENT);
    let i = V::from_i32(e.shr(23));
    (i.or_where(tiny, i - x.splat(23.0)), V::from_bits(bits - e) - x.splat(1.0))
}

/// `y`, the logarithm of `x` where 0 < x < ∞, put right elsewhere.
#[inline(always)]
fn at_edges<V: F32s>(x: V, y: V) -> V {
    let y = x.or_where(x.lt(x.splat(f32::INFINITY)), y);
    let y = y.or_where(x.eq(x.splat(0.0)), x.splat(f32::NEG_INFINITY));
    y.or_where(x.lt(x.splat(0.0)), x.splat(f32::NAN))
}

/// Natural logarithm.
#[inline(always)]
pub fn log<V: F32s>(x: V) -> V {
    let (i, m) = split(x);
    at_edges(x, i.mul_add(x.splat(std::f32::consts::LN_2), log1p_core(m)))
}

/// Logarithm to base 2.
#[inline(always)]
pub fn log2<V: F32s>(x: V) -> V {
    let (i, m) = split(x);
    let y = log1p_core(m);
    let t = y.mul_add(x.splat(LOG2_E), y * x.splat(LOG2_E_LOW));
    at_edges(x, i + t)
}

/// Logarithm to base 10.
#[inline(always)]
pub fn log10<V: F32s>(x: V) -> V {
    let (i, m) = split(x);
    let y = log1p_core(m);
    let t = i.mul_add(x.splat(LOG10_2_LOW), y * x.splat(LOG10_E_LOW));
    let t = y.mul_add(x.splat(LOG10_E), t);
    at_edges(x, i.mul_add(x.splat(LOG10_2), t))
}

/// log(1 + x).
#[inline(always)]
pub fn log1p<V: F32s>(x: V) -> V {
    let one = x.splat(1.0);
    let u = x + one;
    let bits = u.to_bits();
    let e = (bits - bits.splat(TWO_THIRDS)) & bits.splat(EXPONENT);
    // 1 + m = 2⁻ᵉ (1 + x), from x itself and not from the rounded u; beyond 2²⁵ the 1 does not count, and
    // the power may underflow.
    let power = V::from_bits(bits.splat(127 << 23) - e);
    let small = x.mul_add(power, power - one);
    let m = (V::from_bits(bits - e) - one).or_where(x.lt(x.splat(33_554_432.0)), small);
    let y = V::from_i32(e.shr(23)).mul_add(x.splat(std::f32::consts::LN_2), log1p_core(m));
    at_edges(u, y).or_where(x.eq(x.splat(0.0)), x)
}

/// log(1 + eˣ).
#[inline(always)]
pub fn softplus<V: F32s>(x: V) -> V {
    let zero = x.splat(0.0);
    let e = exp(-x.abs());
    // NaN goes through both terms.
    zero.max(x) + log1p(e)
}
