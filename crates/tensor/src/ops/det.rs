//! `det`: the determinant of each square matrix in the last two axes. Of the 0×0 matrix it is 1.

use thalweg_core::{View, ViewMut};

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity};
use crate::ops::Cofactor;
use crate::ops::factor::{each, lu, require_square, with_matrix};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::Sample;
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
        each([x[0]], y, |[a]| Ok(vec![lu::Lu::new(a, n).det()]))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        lu::cost(x, y)
    }

    fn samples() -> Vec<Sample> {
        lu::samples(Det)
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
