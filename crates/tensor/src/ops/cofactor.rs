//! `cofactor`: the gradient of the determinant, det(A) A⁻ᵀ, of each square matrix in the last two axes;
//! defined for singular matrices too.

use thalweg_core::{View, ViewMut};

use crate::error::OpError;
use crate::meta::{Meta, arity};
use crate::ops::factor::{each, lu::Lu, require_square, singular};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};

/// The matrix of cofactors.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Cofactor;

impl Primitive for Cofactor {
    const NAME: &'static str = "cofactor";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [a] = arity(Self::NAME, x)?;
        require_square(Self::NAME, a)?;
        Ok(a.clone())
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::OUTPUT)
    }

    /// dA = ⟨dY, P⟩ Y − Y dYᵀ P with P = A⁻ᵀ. At a singular matrix the inverse is refused, and so is this
    /// gradient.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (y, p) = (g.y(), g.x(0).inv().t());
        let along = (g.dy() * &p).sum_keepdim([-2, -1]);
        Grad::one(&y * along - y.matmul(&g.dy().t()).matmul(&p))
    }

    /// With A = U diag(s) Vᵀ, the cofactors are det(U) det(V) U diag(product of the other s) Vᵀ.
    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let n = x[0].shape()[x[0].shape().rank() - 1];
        each([x[0]], y, |[a]| {
            let Some(singular::Svd { u, s, v }) = singular::svd(a, n, n) else {
                return Ok(vec![f64::NAN; n * n]);
            };
            let sign = (Lu::new(&u, n).det() * Lu::new(&v, n).det()).signum();
            let others = |i: usize| (0..n).filter(|&j| j != i).map(|j| s[j]).product::<f64>() * sign;
            let others: Vec<f64> = (0..n).map(others).collect();
            let element = |i: usize| (0..n).map(|k| u[i / n * n + k] * others[k] * v[i % n * n + k]).sum();
            Ok((0..n * n).map(element).collect())
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let n = x[0].shape.last().copied().unwrap_or(1);
        Cost { flops: (60 * x[0].numel() * n) as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |draw| Sample::new(Cofactor, [draw]);
        vec![
            call(Draw::definite(3)),
            call(Draw::distinct([2, 2, 2])),
            call(Draw::distinct([1, 1])),
            call(Draw::any([2, 0, 0])),
        ]
    }
}

#[test]
fn singular_matrices_have_cofactors() {
    let a = crate::Tensor::from([[1.0f64, 2.0], [2.0, 4.0]]);
    let cofactors = crate::grad(|a| a.det())(&a).to_vec::<f64>();
    let close = cofactors.iter().zip([4.0, -2.0, -2.0, 1.0]).all(|(got, want)| (got - want).abs() < 1e-14);
    assert!(close, "{cofactors:?}");
}
