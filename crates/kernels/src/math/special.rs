//! Special functions of one f64, to about 1e-14 relative.

#![allow(clippy::excessive_precision, reason = "the tables are as published")]

use std::f64::consts::{FRAC_1_SQRT_2, PI};

/// erf x.
pub fn erf(x: f64) -> f64 {
    libm::erf(x)
}

/// 1 − erf x, accurate in the tail.
pub fn erfc(x: f64) -> f64 {
    libm::erfc(x)
}

/// log |Γ(x)|; +∞ at the poles.
pub fn lgamma(x: f64) -> f64 {
    libm::lgamma(x)
}

/// Γ′(x) / Γ(x): ∓∞ at ±0, NaN at the negative integers and −∞. Near a zero left of 0 the error is
/// absolute, not relative.
pub fn digamma(x: f64) -> f64 {
    if x == 0.0 {
        return f64::NEG_INFINITY.copysign(-x);
    }
    if x < 0.0 {
        if x == x.floor() {
            return f64::NAN;
        }
        // Reflection; the tangent's argument is reduced first, where it is exact.
        let part = x - x.round();
        return digamma(1.0 - x) - PI / (PI * part).tan();
    }
    let (mut x, mut sum) = (x, 0.0);
    while x < 12.0 {
        sum -= 1.0 / x;
        x += 1.0;
    }
    // log x − 1/2x − Σ B₂ₖ / (2k x²ᵏ); the first term left out is below 1e-17 at 12.
    const B: [f64; 8] = [
        1.0 / 12.0,
        -1.0 / 120.0,
        1.0 / 252.0,
        -1.0 / 240.0,
        1.0 / 132.0,
        -691.0 / 32760.0,
        1.0 / 12.0,
        -3617.0 / 8160.0,
    ];
    let r = 1.0 / (x * x);
    let series = B.iter().rev().fold(0.0, |s, b| (s + b) * r);
    sum + (x.ln() - 0.5 / x - series)
}

/// The n-th derivative of [`digamma`]. At a pole it is ∞ where both sides agree or the zero has a sign,
/// else NaN. Left of 0 the error is relative to the larger of the two terms of the reflection.
pub fn polygamma(n: u32, x: f64) -> f64 {
    if n == 0 || x.is_nan() {
        return digamma(x);
    }
    let sign = if n % 2 == 1 { 1.0 } else { -1.0 };
    let factorial = (1..=n).map(f64::from).product::<f64>();
    if x > 0.0 {
        return sign * factorial * hurwitz_zeta(n + 1, x);
    }
    if x == 0.0 {
        return if n % 2 == 1 { f64::INFINITY } else { f64::NEG_INFINITY.copysign(-x) };
    }
    if x == x.floor() && x.is_finite() {
        return if n % 2 == 1 { f64::INFINITY } else { f64::NAN };
    }
    // Reflection: ψ⁽ⁿ⁾(x) = (−1)ⁿ ψ⁽ⁿ⁾(1 − x) − π dⁿ/dxⁿ cot πx. NaN at −∞ and NaN.
    let cot = 1.0 / (PI * (x - x.round())).tan();
    -sign * polygamma(n, 1.0 - x) - PI.powi(n as i32 + 1) * cot_derivative(n, cot)
}

/// dⁿ/dtⁿ cot t as a polynomial in c = cot t, whose derivative is −(1 + c²).
fn cot_derivative(n: u32, c: f64) -> f64 {
    let mut p = vec![0.0, 1.0];
    for _ in 0..n {
        let mut next = vec![0.0; p.len() + 1];
        for (k, a) in p.iter().enumerate().skip(1) {
            next[k - 1] -= k as f64 * a;
            next[k + 1] -= k as f64 * a;
        }
        p = next;
    }
    p.iter().rev().fold(0.0, |sum, a| sum * c + a)
}

/// ζ(s, x) = Σ (x + k)⁻ˢ over k ≥ 0, for whole s ≥ 2 and x > 0: the first terms one by one, the rest by
/// Euler and Maclaurin. The first term left out is below 1e-17 of the sum.
fn hurwitz_zeta(s: u32, x: f64) -> f64 {
    /// B₂ₖ / (2k)!
    const B: [f64; 10] = [
        1.0 / 12.0,
        -1.0 / 720.0,
        1.0 / 30240.0,
        -1.0 / 1209600.0,
        1.0 / 47900160.0,
        -691.0 / 1307674368000.0,
        1.0 / 74724249600.0,
        -3617.0 / 10670622842880000.0,
        43867.0 / 5109094217170944000.0,
        -174611.0 / 802857662698291200000.0,
    ];
    let power = |x: f64| x.powi(-(s as i32));
    let (mut x, mut sum) = (x, 0.0);
    while x < 12.0 + f64::from(s) {
        sum += power(x);
        x += 1.0;
    }
    let mut tail = x / f64::from(s - 1) + 0.5;
    // s (s + 1) … (s + 2k − 2) / x²ᵏ⁻¹.
    let mut rising = f64::from(s) / x;
    for (k, b) in (1u32..).zip(B) {
        tail += b * rising;
        rising *= f64::from(s + 2 * k - 1) * f64::from(s + 2 * k) / (x * x);
    }
    if x.is_infinite() { sum } else { sum + power(x) * tail }
}

/// The inverse of erf on [−1, 1]; ±∞ at ±1, NaN outside.
///
/// Wichura, "The percentage points of the normal distribution", algorithm AS 241 (1988), for x/√2.
pub fn erfinv(x: f64) -> f64 {
    if x.is_nan() || x.abs() > 1.0 {
        return f64::NAN;
    }
    if x.abs() == 1.0 {
        return x * f64::INFINITY;
    }
    let q = 0.5 * x;
    if q.abs() <= 0.425 {
        return q * ratio(0.180625 - q * q, &CENTRE) * FRAC_1_SQRT_2;
    }
    let r = (-(0.5 * (1.0 - x.abs())).ln()).sqrt();
    let z = if r <= 5.0 { ratio(r - 1.6, &MIDDLE) } else { ratio(r - 5.0, &TAIL) };
    (z * FRAC_1_SQRT_2).copysign(x)
}

/// Modified Bessel function of the first kind, order 0.
pub fn i0(x: f64) -> f64 {
    bessel_i(0, x)
}

/// Modified Bessel function of the first kind, order 1.
pub fn i1(x: f64) -> f64 {
    bessel_i(1, x)
}

/// Modified Bessel function of the first kind, of a whole order.
///
/// All terms of the power series are positive. Where x is large the asymptotic series falls to
/// e^(−2x) before it diverges.
pub fn bessel_i(order: u32, x: f64) -> f64 {
    let n = f64::from(order);
    let sign = if order % 2 == 1 { 1f64.copysign(x) } else { 1.0 };
    let x = x.abs();
    if x < 30.0 || x < n * n {
        let quarter = 0.25 * x * x;
        let mut term = (1..=order).fold(1.0, |t, k| t * 0.5 * x / f64::from(k));
        let mut sum = term;
        for k in 1..10_000u32 {
            term *= quarter / (f64::from(k) * (f64::from(k) + n));
            sum += term;
            if term <= 1e-17 * sum || sum == f64::INFINITY {
                break;
            }
        }
        return sign * sum;
    }
    let (mut term, mut sum) = (1.0f64, 1.0f64);
    for k in 1..30u32 {
        let odd = f64::from(2 * k - 1);
        term *= (odd * odd - 4.0 * n * n) / (8.0 * x * f64::from(k));
        sum += term;
    }
    // Half of the exponent twice: the result is finite a little beyond the range of exp.
    let root = (0.5 * x).exp();
    sign * if root == f64::INFINITY { root } else { root * (sum / (2.0 * PI * x).sqrt()) * root }
}

/// The n-th derivative of sin(πx) / (πx).
pub fn sinc(n: u32, x: f64) -> f64 {
    // With f(t) = sin t / t and t = πx. The period is taken off first, where that is exact.
    let scale = PI.powi(n as i32);
    let t = PI * x;
    if t.abs() < f64::from(n.max(1)) {
        return scale * sinc_series(n, t);
    }
    let (sin, cos) = (PI * (x - 2.0 * (0.5 * x).round())).sin_cos();
    let derivatives = [sin, cos, -sin, -cos];
    // t f = sin t, differentiated k times: t f⁽ᵏ⁾ + k f⁽ᵏ⁻¹⁾ = sin⁽ᵏ⁾ t.
    scale * (1..=n).fold(sin / t, |f, k| (derivatives[k as usize % 4] - f64::from(k) * f) / t)
}

/// f⁽ⁿ⁾(t) = Σ (−1)ᵏ t²ᵏ⁻ⁿ / ((2k − n)! (2k + 1)) over 2k ≥ n.
fn sinc_series(n: u32, t: f64) -> f64 {
    let first = n.div_ceil(2);
    // tʲ / j! for j = 2k − n, which is 0 or 1 in the first term.
    let mut power = if n % 2 == 1 { t } else { 1.0 };
    let mut sum = 0.0;
    for k in first..first + 40 {
        let sign = if k % 2 == 1 { -1.0 } else { 1.0 };
        sum += sign * power / f64::from(2 * k + 1);
        let j = f64::from(2 * k - n);
        power *= t * t / ((j + 1.0) * (j + 2.0));
    }
    sum
}

/// The quotient of two polynomials, the numerator's coefficients first, lowest order first.
fn ratio(r: f64, c: &[[f64; 8]; 2]) -> f64 {
    let horner = |c: &[f64; 8]| c.iter().rev().fold(0.0, |s, c| s * r + c);
    horner(&c[0]) / horner(&c[1])
}

const CENTRE: [[f64; 8]; 2] = [
    [
        3.3871328727963666080e0,
        1.3314166789178437745e2,
        1.9715909503065514427e3,
        1.3731693765509461125e4,
        4.5921953931549871457e4,
        6.7265770927008700853e4,
        3.3430575583588128105e4,
        2.5090809287301226727e3,
    ],
    [
        1.0,
        4.2313330701600911252e1,
        6.8718700749205790830e2,
        5.3941960214247511077e3,
        2.1213794301586595867e4,
        3.9307895800092710610e4,
        2.8729085735721942674e4,
        5.2264952788528545610e3,
    ],
];
const MIDDLE: [[f64; 8]; 2] = [
    [
        1.42343711074968357734e0,
        4.63033784615654529590e0,
        5.76949722146069140550e0,
        3.64784832476320460504e0,
        1.27045825245236838258e0,
        2.41780725177450611770e-1,
        2.27238449892691845833e-2,
        7.74545014278341407640e-4,
    ],
    [
        1.0,
        2.05319162663775882187e0,
        1.67638483018380384940e0,
        6.89767334985100004550e-1,
        1.48103976427480074590e-1,
        1.51986665636164571966e-2,
        5.47593808499534494600e-4,
        1.05075007164441684324e-9,
    ],
];
const TAIL: [[f64; 8]; 2] = [
    [
        6.65790464350110377720e0,
        5.46378491116411436990e0,
        1.78482653991729133580e0,
        2.96560571828504891230e-1,
        2.65321895265761230930e-2,
        1.24266094738807843860e-3,
        2.71155556874348757815e-5,
        2.01033439929228813265e-7,
    ],
    [
        1.0,
        5.99832206555887937690e-1,
        1.36929880922735805310e-1,
        1.48753612908506148525e-2,
        7.86869131145613259100e-4,
        1.84631831751005468180e-5,
        1.42151175831644588870e-7,
        2.04426310338993978564e-15,
    ],
];

#[cfg(test)]
mod tests {
    use super::{bessel_i, digamma, erf, erfc, erfinv, i0, i1, polygamma, sinc};

    #[track_caller]
    fn close(got: f64, want: f64) {
        assert!((got - want).abs() <= 1e-14 * want.abs(), "{got} is not {want}");
    }

    // Expectations by mpmath, 30 digits.
    #[test]
    fn known_values() {
        for (x, want) in [
            (0.5, -1.9635100260214235),
            (1.0, -0.5772156649015329),
            (10.0, 2.251752589066721),
            (-0.5, 0.03648997397857652),
            (1e-3, -1000.5755719318103),
            (1e10, 23.025850929890456),
        ] {
            close(digamma(x), want);
        }
        for (x, zero, one) in [
            (0.001, 1.0000002500000156, 0.0005000000625000026),
            (0.5, 1.0634833707413236, 0.2578943053908963),
            (3.75, 9.118945860844567, 7.780015229824416),
            (8.0, 427.5641157218048, 399.8731367825601),
            (29.9, 708478330489.0145, 696528308361.0927),
            (30.1, 862432920031.7792, 847983630191.5414),
            (700.0, 1.5295933476718737e+302, 1.5285003902339006e+302),
            (712.0, 2.4684110577627523e+307, 2.4666770135246153e+307),
        ] {
            close(i0(x), zero);
            close(i1(x), one);
            close(i0(-x), zero);
            close(i1(-x), -one);
        }
        for (x, want) in [
            (1e-10, 8.862269254527581e-11),
            (0.1, 0.08885599049425769),
            (0.5, 0.4769362762044699),
            (0.84, 0.9935356283473041),
            (0.86, 1.0435418436397588),
            (0.999, 2.3267537655135246),
            (0.9999999999, 4.572824958544925),
        ] {
            close(erfinv(x), want);
            close(erfinv(-x), -want);
        }
    }

    #[test]
    fn edges() {
        assert_eq!(digamma(0.0), f64::NEG_INFINITY);
        assert_eq!(digamma(-0.0), f64::INFINITY);
        assert!(digamma(-3.0).is_nan() && digamma(f64::NAN).is_nan() && digamma(f64::NEG_INFINITY).is_nan());
        assert_eq!(digamma(f64::INFINITY), f64::INFINITY);
        assert_eq!((erfinv(1.0), erfinv(-1.0)), (f64::INFINITY, f64::NEG_INFINITY));
        assert!(erfinv(1.1).is_nan() && erfinv(f64::NAN).is_nan());
        assert_eq!((i0(f64::INFINITY), i1(f64::NEG_INFINITY)), (f64::INFINITY, f64::NEG_INFINITY));
        assert!(i0(f64::NAN).is_nan());
        assert_eq!((i0(0.0), i1(0.0)), (1.0, 0.0));
    }

    // Expectations by mpmath, 40 digits.
    #[test]
    fn families_with_an_order() {
        for (n, x, want) in [
            (1, 0.5, 4.934802200544679),
            (1, 1.0, 1.6449340668482264),
            (2, 3.25, -0.12815694713911513),
            (3, 0.1, 60004.51287679026),
            (5, 20.0, 8.48426620615823e-06),
            (1, -0.5, 8.934802200544679),
            (2, -1.75, -124.21382135423057),
            (3, -100.25, 1558.5454545884686),
            (1, 10000000000.0, 1.00000000005e-10),
        ] {
            close(polygamma(n, x), want);
        }
        for (n, x, want) in [
            (2, 0.5, 0.031906149177738256),
            (3, 8.0, 236.0752210194777),
            (2, -3.75, 4.969604404938211),
            (3, -3.75, -2.4791038645569903),
            (4, 40.0, 1.2165686635546884e+16),
            (7, 45.0, 1.2026528900440973e+18),
            (10, 1.0, 2.7529480398368737e-10),
        ] {
            close(bessel_i(n, x), want);
        }
        for (n, x, want) in [
            (0, 0.0, 1.0),
            (0, 1e-09, 1.0),
            (0, 0.3, 0.8583936913341398),
            (0, 2.5, 0.12732395447351627),
            (0, 1000.25, 0.00022502282333344316),
            (1, 1e-09, -3.289868133696453e-09),
            (1, 0.2, -0.6323614470684581),
            (1, 0.4, -1.119524335664274),
            (1, 7.75, 0.09498699909652479),
            (2, 0.0, -3.289868133696453),
            (2, 0.3, -2.4584852862661744),
            (2, 0.9, 1.5394726848616678),
            (3, 0.5, 7.141362769433615),
            (3, 2.25, -1.4655333034584255),
        ] {
            close(sinc(n, x), want);
        }
    }

    #[test]
    fn poles_of_polygamma() {
        let inf = f64::INFINITY;
        assert_eq!((polygamma(1, 0.0), polygamma(1, -0.0), polygamma(1, -2.0)), (inf, inf, inf));
        assert_eq!((polygamma(2, 0.0), polygamma(2, -0.0), polygamma(2, inf)), (-inf, inf, 0.0));
        assert!(
            polygamma(2, -2.0).is_nan() && polygamma(1, -inf).is_nan() && polygamma(1, f64::NAN).is_nan()
        );
    }

    #[test]
    fn erfinv_inverts_erf() {
        for i in 1..2000 {
            let x = f64::from(i) * 0.0029;
            if x < 1.0 {
                close(erfinv(erf(x)), x);
            } else if x < 5.0 {
                // In the tail the spacing of erf x near 1 bounds what any inverse can do.
                let y = erfinv(erf(x));
                assert!(((erfc(y) - erfc(x)) / 2.0f64.powi(-53)).abs() < 2.0, "{x} {y}");
            }
        }
    }
}
