//! The block functions against f64, over all exponents, at the edges and at every length.

use crate::math;
use crate::math::special;
use crate::simd::map::{Unary, map};
use crate::simd::vector::F32s;
use crate::simd::{Body, Isa, dispatch_on};

type Block = fn(&[f32], &mut [f32]);
type Twin = fn(f64) -> f64;

/// Each block function, its f64 twin and its promise in ULP.
const TABLE: [(&str, Block, Twin, f64); 21] = [
    ("exp", math::exp, f64::exp, 1.1),
    ("exp2", math::exp2, f64::exp2, 1.0),
    ("expm1", math::expm1, f64::exp_m1, 1.1),
    ("log", math::log, f64::ln, 1.0),
    ("log2", math::log2, f64::log2, 2.1),
    ("log10", math::log10, f64::log10, 2.1),
    ("log1p", math::log1p, f64::ln_1p, 2.0),
    ("softplus", math::softplus, |x| x.max(0.0) + (-x.abs()).exp().ln_1p(), 2.0),
    ("tanh", math::tanh, f64::tanh, 2.5),
    ("sigmoid", math::sigmoid, |x| 1.0 / (1.0 + (-x).exp()), 3.0),
    ("silu", math::silu, |x| x / (1.0 + (-x).exp()), 3.5),
    ("erf", math::erf, special::erf, 1.1),
    ("erfc", math::erfc, special::erfc, 3.1),
    ("gelu", math::gelu, |x| 0.5 * x * special::erfc(-x * std::f64::consts::FRAC_1_SQRT_2), 4.0),
    ("gelu_tanh", math::gelu_tanh, gelu_tanh, 4.0),
    ("sin", math::sin, f64::sin, 2.0),
    ("cos", math::cos, f64::cos, 2.0),
    ("tan", math::tan, f64::tan, 3.0),
    ("sqrt", math::sqrt, f64::sqrt, 0.5),
    ("rsqrt", math::rsqrt, |x| 1.0 / x.sqrt(), 2.0),
    ("recip", math::recip, |x| 1.0 / x, 0.5),
];

fn gelu_tanh(x: f64) -> f64 {
    let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
    x / (1.0 + (-2.0 * u).exp())
}

/// The error of `got` in units of the last place of the f32 nearest to `want`.
fn ulp_error(got: f32, want: f64) -> f64 {
    let near = want as f32;
    if near.is_nan() || near.is_infinite() || got.is_infinite() || got.is_nan() {
        // Rounding up to ∞ just below the overflow threshold is an error of less than 1 ULP.
        let overflow = want.abs() > f64::from(f32::MAX) * (1.0 - 1e-7) && got.abs() >= f32::MAX;
        let same = (near.is_nan() && got.is_nan()) || near == got;
        return if same || (overflow && near.is_sign_negative() == got.is_sign_negative()) {
            0.0
        } else {
            f64::INFINITY
        };
    }
    let exponent = (near.abs().to_bits() >> 23).max(1) as i32 - 127;
    (f64::from(got) - want).abs() / 2f64.powi(exponent - 23)
}

/// Every `step`-th f32 by its bits, and a dense walk where models live.
fn sweep(step: usize) -> Vec<f32> {
    let mut x: Vec<f32> = (0..=u32::MAX).step_by(step).map(f32::from_bits).collect();
    x.extend((-200_000..200_000).step_by(step.min(37)).map(|i| i as f32 * 0.001_003));
    x
}

fn worst(f: Block, twin: Twin, x: &[f32]) -> (f64, f32) {
    let mut y = vec![0.0; x.len()];
    f(x, &mut y);
    let mut worst = (0.0, 0.0);
    for (x, y) in x.iter().zip(&y) {
        let e = ulp_error(*y, twin(f64::from(*x)));
        if e > worst.0 {
            worst = (e, *x);
        }
    }
    worst
}

#[test]
fn errors_are_within_the_stated_ulp() {
    // THALWEG_SWEEP=1 visits every f32, in hours; the promises were checked with 211.
    let step = std::env::var("THALWEG_SWEEP").map_or(8191, |s| s.parse().expect("a step"));
    let x = sweep(step);
    let mut failed = false;
    for (name, f, twin, promise) in TABLE {
        let (e, at) = worst(f, twin, &x);
        println!("{name:10} {e:.3} ulp at {at:e} ({:#010x}), promised {promise}", at.to_bits());
        failed |= e > promise;
    }
    assert!(!failed, "a function breaks its promise; see the table above");
}

#[test]
fn edges_are_exact() {
    let inf = f32::INFINITY;
    let one = |f: Block, x: f32| {
        let mut y = [0.0];
        f(&[x], &mut y);
        y[0]
    };
    let cases: [(&str, Block, f32, f32); 39] = [
        ("exp", math::exp, -inf, 0.0),
        ("exp", math::exp, inf, inf),
        ("exp", math::exp, 100.0, inf),
        ("exp", math::exp, -200.0, 0.0),
        ("exp", math::exp, 0.0, 1.0),
        ("exp2", math::exp2, -149.0, f32::from_bits(1)),
        ("exp2", math::exp2, 128.0, inf),
        ("exp2", math::exp2, -inf, 0.0),
        ("exp2", math::exp2, 10.0, 1024.0),
        ("expm1", math::expm1, -0.0, -0.0),
        ("expm1", math::expm1, -inf, -1.0),
        ("expm1", math::expm1, inf, inf),
        ("log", math::log, 0.0, -inf),
        ("log", math::log, -0.0, -inf),
        ("log", math::log, inf, inf),
        ("log", math::log, -1.0, f32::NAN),
        ("log", math::log, 1.0, 0.0),
        ("log2", math::log2, 8.0, 3.0),
        ("log2", math::log2, f32::from_bits(1), -149.0),
        ("log1p", math::log1p, -1.0, -inf),
        ("log1p", math::log1p, -0.0, -0.0),
        ("log1p", math::log1p, -1.5, f32::NAN),
        ("log1p", math::log1p, inf, inf),
        ("tanh", math::tanh, -0.0, -0.0),
        ("tanh", math::tanh, -inf, -1.0),
        ("sigmoid", math::sigmoid, -inf, 0.0),
        ("sigmoid", math::sigmoid, inf, 1.0),
        ("silu", math::silu, -inf, f32::NAN),
        ("silu", math::silu, inf, inf),
        ("erf", math::erf, -0.0, -0.0),
        ("erf", math::erf, -inf, -1.0),
        ("erfc", math::erfc, inf, 0.0),
        ("erfc", math::erfc, -inf, 2.0),
        ("gelu", math::gelu, inf, inf),
        ("gelu", math::gelu, -inf, f32::NAN),
        ("gelu_tanh", math::gelu_tanh, -inf, f32::NAN),
        ("sin", math::sin, -0.0, -0.0),
        ("cos", math::cos, inf, f32::NAN),
        ("tan", math::tan, -0.0, -0.0),
    ];
    for (name, f, x, want) in cases {
        let y = one(f, x);
        assert!(
            y.to_bits() == want.to_bits() || (y.is_nan() && want.is_nan()),
            "{name}({x}) is {y}, not {want}"
        );
    }
    for (name, f, ..) in TABLE {
        assert!(one(f, f32::NAN).is_nan(), "{name}(NaN)");
    }
}

#[test]
fn place_and_length_do_not_change_bits() {
    let x: Vec<f32> = (0..70).map(|i| (i as f32 - 35.0) * 0.37).collect();
    for (name, f, ..) in TABLE {
        let mut alone = vec![0.0; x.len()];
        for (x, y) in x.iter().zip(&mut alone) {
            f(std::slice::from_ref(x), std::slice::from_mut(y));
        }
        for n in 0..=x.len() {
            let mut y = vec![0.0; n];
            f(&x[..n], &mut y);
            for (a, b) in y.iter().zip(&alone) {
                assert!(a.to_bits() == b.to_bits() || a.is_nan(), "{name}, length {n}");
            }
        }
    }
}

/// `lanes` under a given instruction set.
struct On<'a, O> {
    op: O,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl<O: Unary> Body for On<'_, O> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        for (x, y) in self.x.chunks_exact(16).zip(self.y.chunks_exact_mut(16)) {
            for i in (0..16).step_by(V::LANES) {
                // SAFETY: `i + LANES <= 16`, the length of both chunks; `V` comes from `dispatch_on`.
                unsafe { self.op.lanes(V::load(x.as_ptr().add(i))).store(y.as_mut_ptr().add(i)) };
            }
        }
    }
}

#[derive(Clone, Copy)]
struct All;

impl Unary for All {
    #[inline(always)]
    fn lanes<V: F32s>(self, x: V) -> V {
        use crate::math::{error_function as e, exponential as p, logarithm as l, trigonometry as t};
        let positive = p::exp(x) + p::exp2(x) + l::softplus(x) + e::gelu(x) + e::gelu_tanh(x) + p::silu(x);
        let signed = p::expm1(x) + p::tanh(x) + e::erf(x) - e::erfc(x) + t::sin(x) * t::cos(x) + t::tan(x);
        positive + signed + l::log(x.abs()) + l::log2(x.abs()) * l::log10(x.abs()) + l::log1p(x.abs())
    }
}

#[test]
fn every_instruction_set_gives_the_same_bits() {
    let x: Vec<f32> = (-1600..1600).map(|i| i as f32 * 0.0173).collect();
    let mut want = vec![0.0; x.len()];
    map(All, &x, &mut want);
    for isa in [Isa::Scalar, Isa::Avx2, Isa::Avx512] {
        let mut got = vec![0.0; x.len()];
        dispatch_on(isa, On { op: All, x: &x, y: &mut got });
        for ((x, a), b) in x.iter().zip(&want).zip(&got) {
            assert!(a.to_bits() == b.to_bits() || a.is_nan(), "{isa:?} at {x}: {a} {b}");
        }
    }
}
