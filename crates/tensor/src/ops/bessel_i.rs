//! `bessel_i`: y = Iₙ(x), the modified Bessel function of the first kind.

use thalweg_core::{View, ViewMut};
use thalweg_kernels::math::special;

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity, require_float};
use crate::ops::elementwise::map_float;
use crate::ops::primitive::{Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Sample, elementwise};
use crate::tensor::Tensor;

/// The modified Bessel function of the first kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct BesselI {
    /// n.
    pub order: u32,
}

impl Primitive for BesselI {
    const NAME: &'static str = "bessel_i";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        require_float(Self::NAME, x)?;
        Ok(x.clone())
    }

    fn keep(&self) -> Keep {
        Keep::input(0)
    }

    /// I₀′ = I₁, Iₙ′ = (Iₙ₋₁ + Iₙ₊₁) / 2.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let order = |order| run(BesselI { order }, &[g.x(0)]);
        Grad::one(match self.order {
            0 => g.dy() * order(1),
            n => g.dy() * ((order(n - 1) + order(n + 1)) * 0.5),
        })
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        map_float(x[0], y, |x| special::bessel_i(self.order, x));
        Ok(())
    }

    fn samples() -> Vec<Sample> {
        elementwise(&[0, 1, 2], |order| BesselI { order }, -3.0, 3.0)
    }
}

impl Tensor {
    /// The modified Bessel function of the first kind, order 0.
    #[track_caller]
    pub fn i0(&self) -> Tensor {
        run(BesselI { order: 0 }, &[&self.as_float()])
    }

    /// The modified Bessel function of the first kind, order 1.
    #[track_caller]
    pub fn i1(&self) -> Tensor {
        run(BesselI { order: 1 }, &[&self.as_float()])
    }
}
