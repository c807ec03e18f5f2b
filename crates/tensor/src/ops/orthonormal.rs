//! `orthonormal`: the Q of A = Q R for each matrix in the last two axes, which has at least as many rows as
//! columns. R is upper triangular and its diagonal is not negative, which makes both unique at full rank.

use thalweg_core::{View, ViewMut};

use crate::apply::run;
use crate::error::{OpError, or_fail};
use crate::meta::{Meta, arity};
use crate::ops::factor::{each, orthogonal, require_matrix};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{Side, SolveTriangular};
use crate::tensor::Tensor;

/// Orthonormal columns with the span of A's.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Orthonormal;

impl Primitive for Orthonormal {
    const NAME: &'static str = "orthonormal";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [a] = arity(Self::NAME, x)?;
        let (m, n) = require_matrix(Self::NAME, a)?;
        if m < n {
            let hint = "no more columns than rows can be orthonormal";
            return Err(OpError::Shapes {
                op: Self::NAME,
                left: a.shape.clone(),
                right: [m, m].into(),
                hint,
            });
        }
        Ok(a.clone())
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::OUTPUT)
    }

    /// dA = (dQ − Q C) R⁻ᵀ, where C is symmetric with the lower triangle of dQᵀ Q (Walter and Lehmann,
    /// Algorithmic differentiation of linear algebra functions, 2010).
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (q, dq) = (g.y(), g.dy());
        let r = q.t().matmul(g.x(0)).triu(0);
        let product = dq.t().matmul(&q);
        let c = product.tril(0) + product.tril(-1).t();
        let rest = dq - q.matmul(&c);
        Grad::one(run(SolveTriangular { side: Side::Upper }, &[&r, &rest.t()]).t())
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let [.., m, n] = **x[0].shape() else { unreachable!("`infer` lets matrices through") };
        each([x[0]], y, |[a]| Ok(orthogonal::orthonormal(a, m, n)))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let n = x[0].shape.last().copied().unwrap_or(1);
        Cost { flops: (4 * x[0].numel() * n) as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |draw| Sample::new(Orthonormal, [draw]);
        vec![
            call(Draw::definite(3)),
            call(Draw::distinct([4, 2])),
            call(Draw::distinct([2, 2, 1])),
            call(Draw::any([3, 0])),
        ]
    }
}

impl Tensor {
    /// Q with orthonormal columns and an upper triangular R with A = Q R, for each matrix in the last two
    /// axes; both have the lesser of A's sizes between them. R's diagonal is not negative.
    #[track_caller]
    pub fn qr(&self) -> (Tensor, Tensor) {
        let a = self.as_float();
        let (m, n) = or_fail(require_matrix("qr", a.meta()));
        let q = run(Orthonormal, &[&a.narrow(-1, 0, m.min(n))]);
        let r = q.t().matmul(&a).triu(0);
        (q, r)
    }
}
