//! `slogdet`: the sign of the determinant and the logarithm of its magnitude, as a last axis of size 2, of
//! each square matrix in the last two axes. A singular matrix has sign 0 and logarithm −∞.

use thalweg_core::{View, ViewMut};

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity};
use crate::ops::factor::{each, lu, require_square, with_matrix};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::Sample;
use crate::tensor::Tensor;

/// Sign and logarithm of the determinant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Slogdet;

impl Primitive for Slogdet {
    const NAME: &'static str = "slogdet";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [a] = arity(Self::NAME, x)?;
        require_square(Self::NAME, a)?;
        Ok(with_matrix(a, &[2]))
    }

    fn keep(&self) -> Keep {
        Keep::input(0)
    }

    /// dA = dlog A⁻ᵀ; the sign is constant.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let dlog = g.dy().narrow(-1, 1, 1).unsqueeze(-1);
        Grad::one(g.x(0).inv().t() * dlog)
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let n = x[0].shape()[x[0].shape().rank() - 1];
        each([x[0]], y, |[a]| {
            let (sign, log) = lu::Lu::new(a, n).sign_and_log_det();
            Ok(vec![sign, log])
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        lu::cost(x, y)
    }

    fn samples() -> Vec<Sample> {
        lu::samples(Slogdet)
    }
}

impl Tensor {
    /// The sign of the determinant of each square matrix in the last two axes, and the logarithm of its
    /// magnitude.
    #[track_caller]
    pub fn slogdet(&self) -> (Tensor, Tensor) {
        let both = run(Slogdet, &[&self.as_float()]);
        (both.select(-1, 0).stop_gradient(), both.select(-1, 1))
    }
}
