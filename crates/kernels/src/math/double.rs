//! Elementary and special functions on blocks of f64: std's and [`special`]'s, element by element.
//!
//! Each panics when the lengths differ. f64 is for checks and small models; nothing here is tuned.

use std::f64::consts::{FRAC_1_SQRT_2, PI};

use crate::math::special;

macro_rules! blocks {
    ($($(#[$doc:meta])* $name:ident |$x:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name(x: &[f64], y: &mut [f64]) {
            assert_eq!(x.len(), y.len(), concat!(stringify!($name), ": input and output differ in length"));
            for (y, x) in y.iter_mut().zip(x) {
                let $x = *x;
                *y = $body;
            }
        }
    )*};
}

blocks! {
    /// y = eˣ.
    exp |x| x.exp();
    /// y = 2ˣ.
    exp2 |x| x.exp2();
    /// y = eˣ − 1.
    expm1 |x| x.exp_m1();
    /// y = log x.
    log |x| x.ln();
    /// y = log₂ x.
    log2 |x| x.log2();
    /// y = log₁₀ x.
    log10 |x| x.log10();
    /// y = log(1 + x).
    log1p |x| x.ln_1p();
    /// y = log(1 + eˣ).
    softplus |x| if x.is_nan() { x } else { x.max(0.0) + (-x.abs()).exp().ln_1p() };
    /// y = tanh x.
    tanh |x| x.tanh();
    /// y = 1 / (1 + e⁻ˣ).
    sigmoid |x| sigmoid_of(x);
    /// y = x / (1 + e⁻ˣ); NaN at −∞.
    silu |x| x * sigmoid_of(x);
    /// y = erf x.
    erf |x| special::erf(x);
    /// y = 1 − erf x.
    erfc |x| special::erfc(x);
    /// y = x Φ(x), Φ the normal distribution function; NaN at −∞.
    gelu |x| x * 0.5 * special::erfc(-x * FRAC_1_SQRT_2);
    /// y = x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))); NaN at −∞.
    gelu_tanh |x| x * sigmoid_of(2.0 * (2.0 / PI).sqrt() * (x + 0.044715 * x * x * x));
    /// y = sin x.
    sin |x| x.sin();
    /// y = cos x.
    cos |x| x.cos();
    /// y = tan x.
    tan |x| x.tan();
    /// y = √x.
    sqrt |x| x.sqrt();
    /// y = 1 / √x.
    rsqrt |x| 1.0 / x.sqrt();
    /// y = 1 / x.
    recip |x| 1.0 / x;
    /// y = log |Γ(x)|.
    lgamma |x| special::lgamma(x);
    /// y = Γ′(x) / Γ(x).
    digamma |x| special::digamma(x);
    /// The inverse of erf.
    erfinv |x| special::erfinv(x);
    /// Modified Bessel function I₀.
    i0 |x| special::i0(x);
    /// Modified Bessel function I₁.
    i1 |x| special::i1(x);
}

fn sigmoid_of(x: f64) -> f64 {
    let e = (-x.abs()).exp();
    if x < 0.0 { e / (1.0 + e) } else { 1.0 / (1.0 + e) }
}

#[cfg(test)]
mod tests {
    use super::{gelu, gelu_tanh, sigmoid, silu, softplus};

    #[test]
    fn edges() {
        let inf = f64::INFINITY;
        let x = [f64::NAN, inf, -inf, 0.0];
        type Case = (fn(&[f64], &mut [f64]), [f64; 3]);
        let cases: [Case; 5] = [
            (softplus, [inf, 0.0, 2f64.ln()]),
            (sigmoid, [1.0, 0.0, 0.5]),
            (silu, [inf, f64::NAN, 0.0]),
            (gelu, [inf, f64::NAN, 0.0]),
            (gelu_tanh, [inf, f64::NAN, 0.0]),
        ];
        for (f, want) in cases {
            let mut y = [0.0; 4];
            f(&x, &mut y);
            let same = |(y, want): (&f64, &f64)| y == want || (y.is_nan() && want.is_nan());
            assert!(y[0].is_nan() && y[1..].iter().zip(&want).all(same), "{y:?}");
        }
    }
}
