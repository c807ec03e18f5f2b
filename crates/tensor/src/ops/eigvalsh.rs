//! `eigvalsh`: the eigenvalues, in ascending order, of the symmetric part of each square matrix in the last
//! two axes. Unlike those of `eigh`, its gradient is finite where eigenvalues are equal.

use thalweg_core::{View, ViewMut};

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity};
use crate::ops::factor::{each, require_square, symmetric, symmetric_part, with_matrix};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// The eigenvalues of a symmetric matrix.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Eigvalsh;

impl Primitive for Eigvalsh {
    const NAME: &'static str = "eigvalsh";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [a] = arity(Self::NAME, x)?;
        let n = require_square(Self::NAME, a)?;
        Ok(with_matrix(a, &[n]))
    }

    fn keep(&self) -> Keep {
        Keep::input(0)
    }

    /// dA = V diag(dw) Vᵀ.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (_, v) = g.x(0).eigh();
        Grad::one((&v * g.dy().unsqueeze(-2)).matmul(&v.t()))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let n = x[0].shape()[x[0].shape().rank() - 1];
        each([x[0]], y, |[a]| {
            let found = symmetric::eigh(&symmetric_part(a, n), n);
            let reason = "a matrix has NaN or infinity";
            Ok(found.ok_or(OpError::Value { op: Self::NAME, reason })?.0)
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let n = x[0].shape.last().copied().unwrap_or(1);
        Cost { flops: (60 * x[0].numel() * n) as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |draw| Sample::new(Eigvalsh, [draw]);
        vec![call(Draw::definite(4)), call(Draw::any([2, 1, 1])), call(Draw::any([2, 0, 0]))]
    }
}

impl Tensor {
    /// The eigenvalues, in ascending order, of the symmetric part of each square matrix in the last two axes.
    #[track_caller]
    pub fn eigvalsh(&self) -> Tensor {
        run(Eigvalsh, &[&self.as_float()])
    }
}

#[test]
fn equal_eigenvalues_have_a_gradient() {
    let dx = crate::grad(|x| x.eigvalsh().sum(()))(&Tensor::eye(3, thalweg_core::DType::F32));
    assert_eq!(dx.to_vec::<f32>(), [1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0]);
}
