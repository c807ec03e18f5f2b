//! `random_gamma`: gamma-distributed numbers with unit scale, one per shape parameter.
//!
//! Marsaglia and Tsang, "A simple method for generating gamma variables" (2000). Rejection takes a
//! varying number of draws, so each element has a stream of its own: block counter = position,
//! second counter = attempt.

use thalweg_core::{Element, View, ViewMut, with_dtype};
use thalweg_kernels::philox::philox4x32;

use crate::error::OpError;
use crate::meta::{Meta, arity, require_float};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::random::{require_key, words_of};
use crate::ops::sample::{Draw, Sample};

/// (key, shape parameters α > 0) → Γ(α, 1).
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct RandomGamma;

impl Primitive for RandomGamma {
    const NAME: &'static str = "random_gamma";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [key, alpha] = arity(Self::NAME, x)?;
        require_key(Self::NAME, key)?;
        require_float(Self::NAME, alpha)?;
        Ok(alpha.clone())
    }

    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    fn grad(&self, _g: &Vjp<'_>) -> Grad {
        Grad::None(
            "samples by rejection; use a score-function estimator, or `stop_gradient` on the parameters",
        )
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let key = words_of(x[0]);
        with_dtype!(y.dtype(), T => {
            for (i, (y, alpha)) in y.dense::<T>().iter_mut().zip(x[1].iter::<T>()).enumerate() {
                *y = T::from_f64(gamma(key, i as u64, alpha.to_f64()));
            }
        });
        Ok(())
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 60 * y.numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        vec![Sample::new(RandomGamma, [Draw::int([2], 0, 1 << 31), Draw::float([3, 4], 0.1, 5.0)])]
    }
}

/// Two uniforms in `0..1`, never 0, from one attempt of one element.
pub(crate) fn uniforms(key: [u32; 2], element: u64, attempt: u64) -> [f64; 2] {
    let [a, b, c, d] = philox4x32(key, element, attempt).map(u64::from);
    [a << 32 | b, c << 32 | d].map(|w| ((w >> 12) as f64 + 0.5) / (1u64 << 52) as f64)
}

fn gamma(key: [u32; 2], element: u64, alpha: f64) -> f64 {
    if alpha.is_nan() || alpha <= 0.0 {
        return f64::NAN;
    }
    // Γ(α) = Γ(α + 1) · U^(1/α) brings every α above 1.
    let boost = if alpha < 1.0 { uniforms(key, element, 0)[0].powf(1.0 / alpha) } else { 1.0 };
    let d = alpha.max(1.0) + if alpha < 1.0 { alpha } else { 0.0 } - 1.0 / 3.0;
    let c = 1.0 / (9.0 * d).sqrt();
    for attempt in 0.. {
        let [u1, u2] = uniforms(key, element, 2 * attempt + 1);
        let normal = (-2.0 * u1.ln()).sqrt() * (std::f64::consts::TAU * u2).cos();
        let v = (1.0 + c * normal).powi(3);
        let [u, _] = uniforms(key, element, 2 * attempt + 2);
        if v > 0.0 && u.ln() < 0.5 * normal * normal + d - d * v + d * v.ln() {
            return boost * d * v;
        }
    }
    unreachable!("an attempt is accepted with probability above 0.95")
}
