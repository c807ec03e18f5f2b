//! erf, erfc and the two GELUs, on vectors.

use crate::math::exponential::{exp, exp_parts, nan_at_minus_infinity, polynomial};
use crate::simd::vector::F32s;

/// erf x.
#[inline(always)]
pub fn erf<V: F32s>(x: V) -> V {
    let c = |v| x.splat(v);
    // Both polynomials by N. Juffa, "erff with at most 1 ulp error". 1 − e^(p(a)) is 1 from a = 4 on.
    let a = c(8.0).min(x.abs());
    let s = a * a;
    let r = c(-1.728_534_7e-5).mul_add(a, c(3.831_971_3e-4));
    let u = c(-3.883_964_4e-3).mul_add(a, c(2.425_462_2e-2));
    let r = r.mul_add(s, u);
    let r = r.mul_add(a, c(-1.067_778_8e-1));
    let r = r.mul_add(a, c(-6.348_467e-1));
    let r = r.mul_add(a, c(-1.287_175_1e-1));
    let r = r.mul_add(a, -a);
    let far = (c(1.0) - exp(r)).with_sign(x);
    let p = polynomial(
        s,
        [1.283_791_7e-1, -3.761_253_4e-1, 1.128_199_25e-1, -2.676_813_5e-2, 4.991_194_2e-3, -5.967_617e-4],
    );
    let near = p.mul_add(x, x);
    far.or_where(a.lt(c(0.927_734_4)), near).or_where(x.is_nan(), x)
}

/// exp(a²) erfc(a) for 0 ≤ a ≤ 10.3, by N. Juffa after Shepherd and Laframboise, "Chebyshev
/// approximation of (1 + 2x) exp(x²) erfc x", Math. Comp. 36 (1981).
#[inline(always)]
fn erfc_scaled<V: F32s>(a: V) -> V {
    let c = |v| a.splat(v);
    // q = (a − 2) / (a + 2), its rounding error mended.
    let r = c(1.0) / (a + c(2.0));
    let q = (a - c(2.0)) * r;
    let t = (q + c(1.0)).mul_add(c(-2.0), a);
    let e = q.mul_add(-a, t);
    let q = r.mul_add(e, q);
    let p = polynomial(
        q,
        [
            2.769_784e-1,
            -9.276_398e-2,
            -1.660_313_6e-1,
            1.640_554e-1,
            -5.420_466e-2,
            -8.059_92e-3,
            8.632_274e-3,
            1.313_553_4e-3,
            -1.230_752_1e-3,
            -4.011_392_6e-4,
        ],
    );
    // (1 + p) / (1 + 2a), its rounding error mended.
    let r = c(1.0) / c(2.0).mul_add(a, c(1.0));
    let q = p.mul_add(r, r);
    let e = q.mul_add(-a, c(0.5)).mul_add(c(2.0), p - q);
    e.mul_add(r, q)
}

/// 1 − erf x.
#[inline(always)]
pub fn erfc<V: F32s>(x: V) -> V {
    let a = x.splat(10.2).min(x.abs());
    // exp(−a²) with the rounding error of a² as a correction of first order.
    let s = a * a;
    let t = (-a).mul_add(a, s);
    let (m, scale) = exp_parts(-s);
    let r = erfc_scaled(a) * m;
    let y = r.mul_add(t, r) * scale;
    y.or_where(x.lt(x.splat(0.0)), x.splat(2.0) - y)
}

/// x Φ(x), Φ the distribution function of the standard normal; NaN at −∞, as −∞ · 0 is.
#[inline(always)]
pub fn gelu<V: F32s>(x: V) -> V {
    let a = x.splat(14.5).min(x.abs());
    // a Φ(−a) = a/2 · erfc(a/√2), whose exponent is a²/2 without the rounding of a/√2.
    let s = a * a;
    let t = (-a).mul_add(a, s) * x.splat(0.5);
    let (m, scale) = exp_parts(s * x.splat(-0.5));
    let q = erfc_scaled(a * x.splat(std::f32::consts::FRAC_1_SQRT_2));
    // The roundings of both products are carried into the correction, which holds 4 ULP.
    let (p, half) = (q * m, a * x.splat(0.5));
    let r = p * half;
    let low = q.mul_add(m, -p).mul_add(half, p.mul_add(half, -r));
    let tail = (r.mul_add(t, low) + r) * scale;
    nan_at_minus_infinity(x, (x - tail).or_where(x.lt(x.splat(0.0)), -tail))
}

/// x / (1 + exp(−2u)), u = √(2/π) (x + 0.044715 x³): the GELU by tanh.
#[inline(always)]
pub fn gelu_tanh<V: F32s>(x: V) -> V {
    let c = |v| x.splat(v);
    let a = c(16.0).min(x.abs());
    // v + v_low = 2u for a, in twice the precision: an error of v is a relative error of exp(−v).
    let s = a * a;
    let s_low = a.mul_add(a, -s);
    let cube = s * c(CUBIC);
    let cube_low = s.mul_add(c(CUBIC), -cube) + s_low.mul_add(c(CUBIC), s * c(CUBIC_LOW));
    let w = cube + c(LINEAR);
    let back = w - cube;
    let w_low = (cube - (w - back)) + (c(LINEAR) - back) + (cube_low + c(LINEAR_LOW));
    let v = a * w;
    let v_low = a.mul_add(w, -v) + a * w_low;
    let (m, scale) = exp_parts(-v);
    let m = m.mul_add(-v_low, m);
    let d = m.mul_add(scale, c(1.0));
    let r = c(1.0) / d;
    nan_at_minus_infinity(x, (x * r).or_where(x.lt(c(0.0)), -a * m * r * scale))
}

/// 2 √(2/π) and 0.044715 times it, each in two parts.
const LINEAR: f32 = 1.595_769_2;
const LINEAR_LOW: f32 = (1.595_769_121_605_730_7 - LINEAR as f64) as f32;
const CUBIC: f32 = 0.071_354_814;
const CUBIC_LOW: f32 = (1.595_769_121_605_730_7 * 0.044715 - CUBIC as f64) as f32;
