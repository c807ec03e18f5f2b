//! `sinc`: y = the n-th derivative of sin(πx) / (πx), which is smooth at 0.

use thalweg_core::{View, ViewMut};
use thalweg_kernels::math::special;

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity, require_float};
use crate::ops::elementwise::map_float;
use crate::ops::primitive::{Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Sample, elementwise};
use crate::tensor::Tensor;

/// The n-th derivative of sin(πx) / (πx).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Sinc {
    /// n; 0 is the function itself.
    pub order: u32,
}

impl Primitive for Sinc {
    const NAME: &'static str = "sinc";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        require_float(Self::NAME, x)?;
        Ok(x.clone())
    }

    fn keep(&self) -> Keep {
        Keep::input(0)
    }

    /// The next order; a quotient rule would lose all digits near 0.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy() * run(Sinc { order: self.order + 1 }, &[g.x(0)]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        map_float(x[0], y, |x| special::sinc(self.order, x));
        Ok(())
    }

    fn samples() -> Vec<Sample> {
        elementwise(&[0, 1, 2], |order| Sinc { order }, -2.0, 2.0)
    }
}

impl Tensor {
    /// sin(πx) / (πx), and 1 at 0.
    #[track_caller]
    pub fn sinc(&self) -> Tensor {
        run(Sinc { order: 0 }, &[&self.as_float()])
    }
}
