//! sin, cos and tan, on vectors.
//!
//! Up to `LIMIT` the argument is reduced by π/2 in three parts; a lane beyond it takes libm's f64
//! function, whatever its neighbours are.

use crate::math::exponential::polynomial;
use crate::simd::vector::{F32s, I32s};

/// The largest argument for which three parts of π/2 are enough.
const LIMIT: f32 = 1e5;

/// π/2 in three parts, the first short enough that small multiples of it are exact.
#[allow(clippy::approx_constant, reason = "the nearest f32 is not what is wanted")]
const HALF_PI: [f32; 3] = [1.570_796, 3.139_164_7e-7, 5.390_302_5e-15];

/// `(r, k)` with x = k π/2 + r, |r| ≤ π/4.
#[inline(always)]
fn reduce<V: F32s>(x: V) -> (V, V::I) {
    let k = (x * x.splat(std::f32::consts::FRAC_2_PI)).to_i32();
    let k_f = V::from_i32(k);
    let [high, middle, low] = HALF_PI.map(|part| x.splat(-part));
    let r = k_f.mul_add(middle, k_f.mul_add(high, x));
    (k_f.mul_add(low, r), k)
}

/// sin r and cos r for |r| ≤ π/4; polynomials by N. Juffa.
#[inline(always)]
fn sin_cos_core<V: F32s>(r: V) -> (V, V) {
    let s = r * r;
    let p = polynomial(s, [-1.666_666_7e-1, 8.333_386e-3, -1.985_599_2e-4, 2.865_68e-6]);
    // Adding +0 makes the product +0 for r = −0, so that −0 comes through.
    let sin = p.mul_add(r.mul_add(s, r.splat(0.0)), r);
    let cos = polynomial(s, [1.0, -0.5, 4.166_665_7e-2, -1.388_773e-3, 2.446_770_7e-5]);
    (sin, cos)
}

/// Where `k` is odd.
#[inline(always)]
fn odd<V: F32s>(k: V::I) -> V::M {
    let bit = V::from_i32(k & k.splat(1));
    bit.eq(bit.splat(1.0))
}

/// `y`, but `f` in f64 where |x| is beyond the limit or infinite.
#[inline(always)]
fn beyond_limit<V: F32s>(x: V, y: V, f: fn(f64) -> f64) -> V {
    if V::any(x.splat(LIMIT).lt(x.abs())) { fix_lanes(x, y, f) } else { y }
}

#[inline(always)]
fn fix_lanes<V: F32s>(x: V, y: V, f: fn(f64) -> f64) -> V {
    let (mut xs, mut ys) = ([0.0f32; 16], [0.0f32; 16]);
    // SAFETY: no vector has more than 16 lanes.
    unsafe {
        x.store(xs.as_mut_ptr());
        y.store(ys.as_mut_ptr());
    }
    for (x, y) in xs.iter().zip(&mut ys).take(V::LANES) {
        if x.abs() > LIMIT {
            *y = f(f64::from(*x)) as f32;
        }
    }
    // SAFETY: as above; `x` is a vector of type `V`, so its instruction set exists.
    unsafe { V::load(ys.as_ptr()) }
}

/// sin x.
#[inline(always)]
pub fn sin<V: F32s>(x: V) -> V {
    let (r, k) = reduce(x);
    let (sin, cos) = sin_cos_core(r);
    let y = sin.or_where(odd::<V>(k), cos);
    let sign = (k & k.splat(2)).shl(30);
    beyond_limit(x, V::from_bits(y.to_bits() ^ sign), libm::sin)
}

/// cos x.
#[inline(always)]
pub fn cos<V: F32s>(x: V) -> V {
    let (r, k) = reduce(x);
    let (sin, cos) = sin_cos_core(r);
    let y = cos.or_where(odd::<V>(k), sin);
    let sign = ((k + k.splat(1)) & k.splat(2)).shl(30);
    beyond_limit(x, V::from_bits(y.to_bits() ^ sign), libm::cos)
}

/// tan x.
#[inline(always)]
pub fn tan<V: F32s>(x: V) -> V {
    let (r, k) = reduce(x);
    let (sin, cos) = sin_cos_core(r);
    let odd = odd::<V>(k);
    let y = sin.or_where(odd, -cos) / cos.or_where(odd, sin);
    beyond_limit(x, y, libm::tan)
}
