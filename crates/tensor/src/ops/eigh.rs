//! `eigh`: eigenvalues and eigenvectors of the symmetric part of each square matrix in the last two axes.
//! The result's first row holds the eigenvalues in ascending order, the rows below it the eigenvectors as
//! columns.

use thalweg_core::{View, ViewMut};

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity};
use crate::ops::factor::{each, require_square, symmetric, symmetric_part, with_matrix};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// (n, n) → (1 + n, n): eigenvalues over eigenvectors.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Eigh;

impl Primitive for Eigh {
    const NAME: &'static str = "eigh";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [a] = arity(Self::NAME, x)?;
        let n = require_square(Self::NAME, a)?;
        Ok(with_matrix(a, &[n + 1, n]))
    }

    fn keep(&self) -> Keep {
        Keep::OUTPUT
    }

    /// dA is the symmetric part of V (diag(dw) + F ∘ Vᵀ dV) Vᵀ with Fᵢⱼ = 1 / (wⱼ − wᵢ), 0 on the diagonal.
    /// Equal eigenvalues have no unique eigenvectors, and their gradient is not finite.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (w, v) = unpack(&g.y());
        let (dw, dv) = unpack(g.dy());
        let eye = v.eye_like();
        let gaps = w.unsqueeze(-2) - w.unsqueeze(-1) + &eye;
        let f = (1.0 - &eye) / gaps;
        let inner = f * v.t().matmul(&dv) + eye * dw.unsqueeze(-2);
        Grad::one(v.matmul(&inner).matmul(&v.t()).symmetric_part())
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let n = x[0].shape()[x[0].shape().rank() - 1];
        each([x[0]], y, |[a]| {
            let found = symmetric::eigh(&symmetric_part(a, n), n);
            let reason = "a matrix has NaN or infinity";
            let (mut both, vectors) = found.ok_or(OpError::Value { op: Self::NAME, reason })?;
            both.extend(vectors);
            Ok(both)
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let n = x[0].shape.last().copied().unwrap_or(1);
        Cost { flops: (60 * x[0].numel() * n) as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |draw| Sample::new(Eigh, [draw]);
        vec![call(Draw::definite(3)), call(Draw::any([2, 1, 1])), call(Draw::any([2, 0, 0]))]
    }
}

/// The eigenvalues (n) and the eigenvectors (n, n).
fn unpack(both: &Tensor) -> (Tensor, Tensor) {
    (both.select(-2, 0), both.narrow(-2, 1, both.size(-1)))
}

impl Tensor {
    /// Eigenvalues in ascending order, and eigenvectors as columns, of the symmetric part of each square
    /// matrix in the last two axes. The largest component of each eigenvector is positive.
    #[track_caller]
    pub fn eigh(&self) -> (Tensor, Tensor) {
        unpack(&run(Eigh, &[&self.as_float()]))
    }
}
