//! `svd`: A = U diag(s) Vᵀ for each matrix in the last two axes, with as many columns as A has rows or
//! columns, whichever is less. The result's rows are those of U, then s, then those of V.

use thalweg_core::{View, ViewMut};

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity};
use crate::ops::factor::{each, require_matrix, singular, with_matrix};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// (m, n) → (m + 1 + n, k): U over s over V, k = min(m, n).
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Svd;

impl Primitive for Svd {
    const NAME: &'static str = "svd";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [a] = arity(Self::NAME, x)?;
        let (m, n) = require_matrix(Self::NAME, a)?;
        Ok(with_matrix(a, &[m + 1 + n, m.min(n)]))
    }

    fn keep(&self) -> Keep {
        Keep::METAS.and(Keep::OUTPUT)
    }

    /// With F₁ = F ∘ (Uᵀ dU − dUᵀ U), F₂ = F ∘ (Vᵀ dV − dVᵀ V) and Fᵢⱼ = 1 / (sⱼ² − sᵢ²), 0 on the
    /// diagonal, dA = U (F₁ S + S F₂ + diag(ds)) Vᵀ, plus what leaves the span of U, (1 − U Uᵀ) dU S⁻¹ Vᵀ,
    /// and that of V, likewise (Townsend, Differentiating the SVD, 2016). Equal singular values have no
    /// unique vectors, and the gradient of those is not finite.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let [m, n] = [2, 1].map(|i| g.meta(0).shape[g.meta(0).shape.rank() - i]);
        let (u, s, v) = unpack(&g.y(), m);
        let (du, ds, dv) = unpack(g.dy(), m);
        let eye = Tensor::eye(m.min(n), u.dtype());
        let squares = &s * &s;
        let f = (1.0 - &eye) / (squares.unsqueeze(-2) - squares.unsqueeze(-1) + &eye);
        let skew = |x: &Tensor, dx: &Tensor| {
            let product = x.t().matmul(dx);
            &f * (&product - product.t())
        };
        let (row, column) = (s.unsqueeze(-2), s.unsqueeze(-1));
        let inner = skew(&u, &du) * &row + skew(&v, &dv) * &column + eye * ds.unsqueeze(-2);
        let mut da = u.matmul(&inner).matmul(&v.t());
        let outside = |x: &Tensor, dx: &Tensor| (dx - x.matmul(&x.t().matmul(dx))) / &row;
        if m > n {
            da = da + outside(&u, &du).matmul(&v.t());
        }
        if n > m {
            da = da + u.matmul(&outside(&v, &dv).t());
        }
        Grad::one(da)
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let [.., m, n] = **x[0].shape() else { unreachable!("`infer` lets matrices through") };
        each([x[0]], y, |[a]| {
            let reason = "a matrix has NaN or infinity";
            let found = singular::svd(a, m, n).ok_or(OpError::Value { op: Self::NAME, reason })?;
            Ok([found.u, found.s, found.v].concat())
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let k = y.shape.last().copied().unwrap_or(1);
        Cost { flops: (60 * x[0].numel() * k) as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |shape: &[usize]| Sample::new(Svd, [Draw::distinct(shape)]);
        vec![call(&[3, 2]), call(&[2, 3]), call(&[2, 2, 2]), call(&[1, 1]), call(&[0, 2]), call(&[0, 2, 2])]
    }
}

/// U (m, k), s (k) and V (n, k).
fn unpack(all: &Tensor, m: usize) -> (Tensor, Tensor, Tensor) {
    let n = all.size(-2) - m - 1;
    (all.narrow(-2, 0, m), all.select(-2, m as isize), all.narrow(-2, m + 1, n))
}

impl Tensor {
    /// U, s and V with A = U diag(s) Vᵀ for each matrix in the last two axes. The singular values descend;
    /// U and V have as many columns as there are of them, and the largest component of each column of U is
    /// positive. Note that this is V, as in JAX's `vh` transposed.
    #[track_caller]
    pub fn svd(&self) -> (Tensor, Tensor, Tensor) {
        if self.rank() < 2 {
            crate::error::fail(OpError::Rank {
                op: Svd::NAME,
                want: "at least 2",
                shape: self.shape().clone(),
            });
        }
        unpack(&run(Svd, &[&self.as_float()]), self.size(-2))
    }
}
