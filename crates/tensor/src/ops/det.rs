//! `det`: the determinant of each square matrix in the last two axes. Of the 0×0 matrix it is 1.

use thalweg_core::{View, ViewMut};

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity};
use crate::ops::Cofactor;
use crate::ops::factor::{each, lu::Lu, require_square, with_matrix};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// The determinant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Det;

impl Primitive for Det {
    const NAME: &'static str = "det";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [a] = arity(Self::NAME, x)?;
        require_square(Self::NAME, a)?;
        Ok(with_matrix(a, &[]))
    }

    fn keep(&self) -> Keep {
        Keep::input(0)
    }

    /// dA = dy times the cofactors.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        Grad::one(run(Cofactor, &[g.x(0)]) * g.dy().unsqueeze(-1).unsqueeze(-1))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let n = x[0].shape()[x[0].shape().rank() - 1];
        each([x[0]], y, |[a]| Ok(vec![Lu::new(a, n).det()]))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let n = x[0].shape.last().copied().unwrap_or(1);
        Cost { flops: (x[0].numel() * n * 2 / 3) as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |draw| Sample::new(Det, [draw]);
        vec![
            call(Draw::definite(3)),
            call(Draw::float([2, 1, 1], 1.0, 2.0)),
            call(Draw::any([2, 0, 0])),
            call(Draw::distinct([2, 2])),
        ]
    }
}

impl Tensor {
    /// The determinant of each square matrix in the last two axes. The gradient
    /// exists for every matrix, the second derivative for those that are not singular.
    #[track_caller]
    pub fn det(&self) -> Tensor {
        run(Det, &[&self.as_float()])
    }
}
