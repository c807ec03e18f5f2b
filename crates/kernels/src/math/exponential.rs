//! exp and what is made of it, on vectors.
//!
//! All split x = n ln 2 + r with |r| ≤ ln 2 / 2 and scale a polynomial in r by 2ⁿ in two halves, so that
//! results below the normal range are rounded once.

use std::f32::consts::{LN_2, LOG2_E};

use crate::simd::vector::{F32s, I32s};

/// ln 2 in two parts; the first has zeros at its end, so that n · LN2_HI is exact.
const LN2_HI: f32 = 6.931_457_5e-1;
const LN2_LO: f32 = 1.428_606_8e-6;

/// Σ c[i] xⁱ, by Horner's rule.
#[inline(always)]
pub(crate) fn polynomial<V: F32s, const N: usize>(x: V, c: [f32; N]) -> V {
    let mut sum = x.splat(c[N - 1]);
    for &c in c[..N - 1].iter().rev() {
        sum = sum.mul_add(x, x.splat(c));
    }
    sum
}

/// 2ⁿ for −126 ≤ n ≤ 127. Only the last nine bits of n count.
#[inline(always)]
fn power_of_two<V: F32s>(n: V::I) -> V {
    V::from_bits(n.shl(23) + n.splat(127 << 23))
}

/// 1.5 · 2²³: added to a small number, it leaves the nearest integer in the last bits of the sum.
const SHIFT: f32 = 12_582_912.0;

/// The integer nearest to x · `scale`, and the bits of a number that end in it; for products below 2²².
#[inline(always)]
fn nearest<V: F32s>(x: V, scale: f32) -> (V, V::I) {
    let shifted = x.mul_add(x.splat(scale), x.splat(SHIFT));
    (shifted - x.splat(SHIFT), shifted.to_bits())
}

/// exp(x) as `(m, s)` with exp(x) = m · s, m normal even where the product is not.
#[inline(always)]
pub(crate) fn exp_parts<V: F32s>(x: V) -> (V, V) {
    // Outside of this range x · eˣ is 0 or ∞ all the same. The bound comes first: NaN stays NaN.
    let (m, n) = expm1_split(x.splat(89.0).min(x.splat(-120.0).max(x)));
    let half = n.shr(1);
    ((m + x.splat(1.0)) * power_of_two::<V>(half), power_of_two(n - half))
}

/// e^r = 1 + r + r² q(r) for |r| ≤ ln 2 / 2: minimax in the relative error of e^r, 3e-9 with these roundings.
const Q: [f32; 5] = [4.999_999_4e-1, 1.666_652_1e-1, 4.166_825_5e-2, 8.368_662e-3, 1.382_144_6e-3];

/// exp(x) as `(m, n)` with exp(x) = (1 + m) · 2ⁿ, for |x| up to some hundreds; n as the last bits of an integer.
#[inline(always)]
fn expm1_split<V: F32s>(x: V) -> (V, V::I) {
    let (n, n_bits) = nearest(x, LOG2_E);
    let r = n.mul_add(x.splat(-LN2_HI), x);
    let r = n.mul_add(x.splat(-LN2_LO), r);
    (polynomial(r, Q).mul_add(r * r, r), n_bits)
}

/// eˣ.
#[inline(always)]
pub fn exp<V: F32s>(x: V) -> V {
    let (m, s) = exp_parts(x);
    m * s
}

/// 2ˣ.
#[inline(always)]
pub fn exp2<V: F32s>(x: V) -> V {
    let x = x.splat(129.0).min(x.splat(-151.0).max(x));
    let n = x.to_i32();
    let r = x - V::from_i32(n);
    // Coefficients of Cephes' exp2f.
    let q = polynomial(
        r,
        [6.931_472e-1, 2.402_264_8e-1, 5.550_332_5e-2, 9.618_437e-3, 1.339_887_4e-3, 1.535_336_2e-4],
    );
    let p = q.mul_add(r, x.splat(1.0));
    let half = n.shr(1);
    p * power_of_two(half) * power_of_two(n - half)
}

/// eˣ − 1.
#[inline(always)]
pub fn expm1<V: F32s>(x: V) -> V {
    let bounded = x.splat(89.0).min(x.splat(-18.0).max(x));
    let n = (bounded * x.splat(LOG2_E)).to_i32();
    let n_f = V::from_i32(n);
    let r = n_f.mul_add(x.splat(-LN2_HI), bounded);
    let r = n_f.mul_add(x.splat(-LN2_LO), r);
    // Coefficients by N. Juffa, "expm1f with at most 1 ulp error".
    let q = polynomial(
        r,
        [4.999_999_7e-1, 1.666_667_2e-1, 4.166_668e-2, 8.333_44e-3, 1.393_090_7e-3, 1.973_509_8e-4],
    );
    // Twice half of 2ⁿ (e^r − 1) + 2ⁿ − 1: at n = 128 the power itself would be infinite. For n = 1 the
    // half joins r before the rounding of the product.
    let one = n_f.eq(x.splat(1.0));
    let u = r.or_where(one, r + x.splat(0.5));
    let v = q.mul_add(r * r, u);
    let t = power_of_two::<V>(n - n.splat(1));
    let high = t - x.splat(0.5);
    let low = (t - high) - x.splat(0.5);
    let y = v.mul_add(t, low) + high;
    let y = (y + y).or_where(one, v + v).or_where(n_f.eq(x.splat(0.0)), v);
    y.or_where(x.eq(x.splat(0.0)), x)
}

/// tanh x, as u / (u + 1) for u = (e²ˣ − 1) / 2: without a cancellation anywhere.
#[inline(always)]
pub fn tanh<V: F32s>(x: V) -> V {
    // From 9.1 on the result is 1; up to there ln 2 in one part is enough, and (2ⁿ − 1) / 2 is exact or rounds to 2ⁿ⁻¹.
    let a = x.splat(10.0).min(x.abs());
    let (n, n_bits) = nearest(a, 2.0 * LOG2_E);
    let h = n.mul_add(x.splat(-0.5 * LN_2), a);
    // (e^r − 1) / 2 for r = 2h.
    let m = polynomial(h, [2.0 * Q[0], 4.0 * Q[1], 8.0 * Q[2], 16.0 * Q[3], 32.0 * Q[4]]).mul_add(h * h, h);
    let scale = power_of_two::<V>(n_bits);
    let u = m.mul_add(scale, scale.mul_add(x.splat(0.5), x.splat(-0.5)));
    (u / (u + x.splat(1.0))).with_sign(x)
}

/// `(m, s, d)` with 1 / (1 + e⁻ˣ) = m · s / d: the quotient of e⁻¹ˣ¹ or 1, and 1 + e⁻¹ˣ¹.
#[inline(always)]
fn sigmoid_parts<V: F32s>(x: V) -> (V, V, V) {
    let one = x.splat(1.0);
    let (m, s) = exp_parts(-x.abs());
    let negative = x.lt(x.splat(0.0));
    (one.or_where(negative, m), one.or_where(negative, s), m.mul_add(s, one))
}

/// 1 / (1 + e⁻ˣ).
#[inline(always)]
pub fn sigmoid<V: F32s>(x: V) -> V {
    let one = x.splat(1.0);
    let (n, n_bits) = nearest(x, -LOG2_E);
    // −r for e⁻ˣ = 2ⁿ e^r, and with it the odd coefficients change their signs.
    let r = n.mul_add(x.splat(LN2_HI), x);
    let r = n.mul_add(x.splat(LN2_LO), r);
    let p = polynomial(r, [1.0, -1.0, Q[0], -Q[1], Q[2], -Q[3], Q[4]]);
    let y = one / p.mul_add(power_of_two(n_bits), one);
    // Further out e⁻ˣ is no normal number.
    let far = x.splat(87.0).lt(x.abs());
    if !V::any(far) {
        return y;
    }
    let (m, s, d) = sigmoid_parts(x);
    y.or_where(far, m / d * s)
}

/// x / (1 + e⁻ˣ); NaN at −∞, as −∞ / ∞ is, and as PyTorch has it.
#[inline(always)]
pub fn silu<V: F32s>(x: V) -> V {
    let (m, s, d) = sigmoid_parts(x);
    // Bounded below: the exponential of a lower number is no longer a normal one.
    let bounded = x.splat(-120.0).max(x);
    nan_at_minus_infinity(x, m * bounded / d * s)
}

/// `y`, or NaN where x is −∞: functions of the form x · p(x) have −∞ · 0 there.
#[inline(always)]
pub(crate) fn nan_at_minus_infinity<V: F32s>(x: V, y: V) -> V {
    y.or_where(x.lt(x.splat(f32::MIN)), x.splat(f32::NAN))
}
