//! `polygamma`: y = ψ⁽ⁿ⁾(x), the n-th derivative of the digamma function ψ = (log Γ)′.

use thalweg_core::{View, ViewMut};
use thalweg_kernels::math::special;

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity, require_float};
use crate::ops::elementwise::map_float;
use crate::ops::primitive::{Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Sample, elementwise};
use crate::tensor::Tensor;

/// The n-th derivative of the digamma function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Polygamma {
    /// n.
    pub order: u32,
}

impl Primitive for Polygamma {
    const NAME: &'static str = "polygamma";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        require_float(Self::NAME, x)?;
        Ok(x.clone())
    }

    fn keep(&self) -> Keep {
        Keep::input(0)
    }

    /// The next order: the derivatives never leave the family.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() * run(Polygamma { order: self.order + 1 }, &[g.x(0)]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        map_float(x[0], y, |x| special::polygamma(self.order, x));
        Ok(())
    }

    fn samples() -> Vec<Sample> {
        elementwise(&[0, 1, 2, 3], |order| Polygamma { order }, 0.6, 4.0)
    }
}

impl Tensor {
    /// Γ′(x) / Γ(x): ∓∞ at ±0, NaN at the other poles.
    #[track_caller]
    pub fn digamma(&self) -> Tensor {
        self.polygamma(0)
    }

    /// The n-th derivative of [`Tensor::digamma`].
    #[track_caller]
    pub fn polygamma(&self, order: u32) -> Tensor {
        run(Polygamma { order }, &[&self.as_float()])
    }
}
