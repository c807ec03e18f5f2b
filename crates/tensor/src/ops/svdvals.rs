//! `svdvals`: the singular values, in descending order, of each matrix in the last two axes. Unlike those
//! of `svd`, its gradient is finite where singular values are equal.

use thalweg_core::{View, ViewMut};

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity};
use crate::ops::factor::{each, require_matrix, singular, with_matrix};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// The singular values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Svdvals;

impl Primitive for Svdvals {
    const NAME: &'static str = "svdvals";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [a] = arity(Self::NAME, x)?;
        let (m, n) = require_matrix(Self::NAME, a)?;
        Ok(with_matrix(a, &[m.min(n)]))
    }

    fn keep(&self) -> Keep {
        Keep::input(0)
    }

    /// dA = U diag(ds) Vᵀ.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (u, _, v) = g.x(0).svd();
        Grad::one((u * g.dy().unsqueeze(-2)).matmul(&v.t()))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let [.., m, n] = **x[0].shape() else { unreachable!("`infer` lets matrices through") };
        each([x[0]], y, |[a]| {
            let reason = "a matrix has NaN or infinity";
            Ok(singular::svd(a, m, n).ok_or(OpError::Value { op: Self::NAME, reason })?.s)
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let k = y.shape.last().copied().unwrap_or(1);
        Cost { flops: (60 * x[0].numel() * k) as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |shape: &[usize]| Sample::new(Svdvals, [Draw::distinct(shape)]);
        vec![call(&[3, 2]), call(&[2, 4]), call(&[2, 2, 2]), call(&[0, 2]), call(&[0, 2, 2])]
    }
}

impl Tensor {
    /// The singular values, in descending order, of each matrix in the last two axes.
    #[track_caller]
    pub fn svdvals(&self) -> Tensor {
        run(Svdvals, &[&self.as_float()])
    }
}
