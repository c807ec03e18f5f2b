//! `stop_gradient`: the same values, through which no gradient flows.
//!
//! Eager code forgets a tensor's history and applies nothing. A graph has no histories, so a trace notes this op: whoever
//! differentiates the graph stops here, and a compiled function, which is differentiated before, does without it
//! (`Op::repeats`).

use std::panic::Location;

use thalweg_core::{Layout, Shape, View, ViewMut};

use crate::error::OpError;
use crate::meta::{Meta, arity};
use crate::ops::copy;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{self, Sample};
use crate::tape;
use crate::tensor::Tensor;
use crate::trace;

/// The same values, through which no gradient flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct StopGradient;

impl Primitive for StopGradient {
    const NAME: &'static str = "stop_gradient";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        Ok(x.clone())
    }

    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    /// Not the derivative, which is what the op is for.
    fn grad(&self, _g: &Vjp<'_>) -> Grad {
        Grad::zero(1)
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        copy::into_dense(x[0], y);
        Ok(())
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn view(&self, x: &Layout, _result: &Shape) -> Option<Layout> {
        Some(x.clone())
    }

    fn cost(&self, _x: &[&Meta], _y: &Meta) -> Cost {
        Cost::default()
    }

    fn samples() -> Vec<Sample> {
        sample::elementwise(&[()], |()| StopGradient, -2.0, 2.0)
    }
}

impl Tensor {
    /// The same values; gradients stop here.
    ///
    /// ```
    /// use thalweg_tensor::{Tensor, grad};
    /// let x = Tensor::scalar(3.0f32);
    /// assert_eq!(grad(|x| x * x.stop_gradient())(&x).item::<f32>(), 3.0);
    /// ```
    #[track_caller]
    pub fn stop_gradient(&self) -> Tensor {
        match self.is_traced() {
            true => trace::stop(self, tape::line(Location::caller())),
            false => self.without_history(),
        }
    }
}
