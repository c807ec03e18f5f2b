//! `cholesky`: the lower triangular L with A = L Lᵀ, of the symmetric part of each matrix in the last two
//! axes. Refuses matrices that are not positive definite.

use thalweg_core::{View, ViewMut};

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity};
use crate::ops::factor::{each, require_square, symmetric_part, triangular};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{Side, SolveTriangular};
use crate::tensor::Tensor;

/// The Cholesky factor.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Cholesky;

impl Primitive for Cholesky {
    const NAME: &'static str = "cholesky";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [a] = arity(Self::NAME, x)?;
        require_square(Self::NAME, a)?;
        Ok(a.clone())
    }

    fn keep(&self) -> Keep {
        Keep::OUTPUT
    }

    /// dA is the symmetric part of L⁻ᵀ Φ(Lᵀ dL) L⁻¹, where Φ keeps the lower triangle and half the diagonal
    /// (Murray, Differentiation of the Cholesky decomposition, 2016).
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let l = g.y();
        let product = l.t().matmul(g.dy());
        let phi = (product.tril(0) + product.tril(-1)) * 0.5;
        let under = |b: &Tensor| run(SolveTriangular { side: Side::Upper }, &[&l.t(), b]);
        Grad::one(under(&under(&phi).t()).symmetric_part())
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let n = x[0].shape()[x[0].shape().rank() - 1];
        let reason = "a matrix is not positive definite (add to its diagonal?)";
        each([x[0]], y, |[a]| {
            let l = triangular::cholesky(&symmetric_part(a, n), n);
            l.ok_or(OpError::Value { op: Self::NAME, reason })
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let n = x[0].shape.last().copied().unwrap_or(1);
        Cost { flops: (x[0].numel() * n / 3) as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |draw| Sample::new(Cholesky, [draw]);
        vec![
            call(Draw::definite(1)),
            call(Draw::definite(4)),
            call(Draw::any([2, 0, 0])),
            call(Draw::any([0, 3, 3])),
        ]
    }
}

impl Tensor {
    /// The lower triangular L with L Lᵀ equal to the symmetric part of each matrix in the last two axes.
    /// Panics when one is not positive definite.
    #[track_caller]
    pub fn cholesky(&self) -> Tensor {
        run(Cholesky, &[&self.as_float()])
    }
}
