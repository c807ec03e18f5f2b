//! Elementary and special functions on blocks of f32.
//!
//! Each block function takes equally long slices and panics otherwise; it runs on the calling thread. The
//! bits of a result depend on the argument alone: not on its place, the slice's length or the instruction
//! set. Where a function states ULP, the error was measured against f64 over all exponents (see `tests`),
//! subnormal results included. The functions on vectors, for fused kernels, are in the submodules.

pub mod double;
pub mod error_function;
pub mod exponential;
pub mod logarithm;
pub mod special;
pub mod trigonometry;

#[cfg(test)]
mod tests;

use crate::simd::map::{Unary, map};
use crate::simd::vector::F32s;

macro_rules! blocks {
    ($($(#[$doc:meta])* $name:ident |$x:ident| $body:expr;)*) => {$(
        $(#[$doc])*
        pub fn $name(x: &[f32], y: &mut [f32]) {
            #[derive(Clone, Copy)]
            struct Op;
            impl Unary for Op {
                #[inline(always)]
                fn lanes<V: F32s>(self, $x: V) -> V {
                    $body
                }
            }
            map(Op, x, y);
        }
    )*};
}

blocks! {
    /// y = eˣ. 1.1 ULP.
    exp |x| exponential::exp(x);
    /// y = 2ˣ. 1 ULP.
    exp2 |x| exponential::exp2(x);
    /// y = eˣ − 1. 1.1 ULP.
    expm1 |x| exponential::expm1(x);
    /// y = log x. 1 ULP. −∞ at 0, NaN below.
    log |x| logarithm::log(x);
    /// y = log₂ x. 2.1 ULP; exact at powers of two.
    log2 |x| logarithm::log2(x);
    /// y = log₁₀ x. 2.1 ULP.
    log10 |x| logarithm::log10(x);
    /// y = log(1 + x). 2 ULP.
    log1p |x| logarithm::log1p(x);
    /// y = log(1 + eˣ). 2 ULP.
    softplus |x| logarithm::softplus(x);
    /// y = tanh x. 2.5 ULP.
    tanh |x| exponential::tanh(x);
    /// y = 1 / (1 + e⁻ˣ). 3 ULP.
    sigmoid |x| exponential::sigmoid(x);
    /// y = x / (1 + e⁻ˣ). 3.5 ULP; NaN at −∞.
    silu |x| exponential::silu(x);
    /// y = erf x. 1.1 ULP.
    erf |x| error_function::erf(x);
    /// y = 1 − erf x. 3.1 ULP, in the tail too.
    erfc |x| error_function::erfc(x);
    /// y = x Φ(x), Φ the normal distribution function: the exact GELU. 4 ULP; NaN at −∞.
    gelu |x| error_function::gelu(x);
    /// y = x/2 (1 + tanh(√(2/π) (x + 0.044715 x³))). 4 ULP of that formula; NaN at −∞.
    gelu_tanh |x| error_function::gelu_tanh(x);
    /// y = sin x. 2 ULP.
    sin |x| trigonometry::sin(x);
    /// y = cos x. 2 ULP.
    cos |x| trigonometry::cos(x);
    /// y = tan x. 3 ULP.
    tan |x| trigonometry::tan(x);
    /// y = √x, correctly rounded.
    sqrt |x| x.sqrt();
    /// y = 1 / √x. 2 ULP. ±∞ at ±0, NaN below.
    rsqrt |x| x.splat(1.0) / x.sqrt();
    /// y = 1 / x, correctly rounded.
    recip |x| x.splat(1.0) / x;
}

macro_rules! through_f64 {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        pub fn $name(x: &[f32], y: &mut [f32]) {
            assert_eq!(x.len(), y.len(), concat!(stringify!($name), ": input and output differ in length"));
            for (y, x) in y.iter_mut().zip(x) {
                *y = special::$name(f64::from(*x)) as f32;
            }
        }
    )*};
}

through_f64! {
    /// y = log |Γ(x)|, through f64.
    lgamma;
    /// y = Γ′(x) / Γ(x), through f64.
    digamma;
    /// The inverse of erf, through f64.
    erfinv;
    /// Modified Bessel function I₀, through f64.
    i0;
    /// Modified Bessel function I₁, through f64.
    i1;
}

/// z = xʸ, through f64 and so correctly rounded but for rare ties.
///
/// # Panics
/// When the lengths differ.
pub fn pow(x: &[f32], y: &[f32], z: &mut [f32]) {
    assert!(x.len() == z.len() && y.len() == z.len(), "pow: inputs and output differ in length");
    for ((z, x), y) in z.iter_mut().zip(x).zip(y) {
        *z = f64::from(*x).powf(f64::from(*y)) as f32;
    }
}

/// y = xᵉ for one exponent, through f64 but for the common ones.
///
/// # Panics
/// When the lengths differ.
pub fn pow_scalar(x: &[f32], e: f32, y: &mut [f32]) {
    assert_eq!(x.len(), y.len(), "pow: input and output differ in length");
    // IEEE's pow(−∞, 0.5) is +∞ and pow(−0, 0.5) is +0; the square root says NaN and −0. So only the
    // whole exponents take the short way.
    if e == 2.0 {
        y.iter_mut().zip(x).for_each(|(y, x)| *y = x * x);
    } else if e == 1.0 {
        y.copy_from_slice(x);
    } else if e == -1.0 {
        recip(x, y);
    } else {
        y.iter_mut().zip(x).for_each(|(y, x)| *y = f64::from(*x).powf(f64::from(e)) as f32);
    }
}
