//! AdaDelta (Zeiler, 2012).

use thalweg_tensor::Tensor;

use crate::optim::{Rule, Slots, with_defaults};

/// Each step has the size of the recent steps, relative to the recent gradients: needs no rate (use 1).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adadelta {
    /// What the averages keep from step to step.
    pub rho: f64,
    /// Keeps the first steps from 0.
    pub eps: f64,
}

impl Default for Adadelta {
    fn default() -> Self {
        Self { rho: 0.9, eps: 1e-6 }
    }
}

with_defaults!(Adadelta);

impl Rule for Adadelta {
    fn update(&self, weight: &Tensor, gradient: &Tensor, slots: &mut Slots<'_>) -> Tensor {
        let squares = slots.average("square_avg", &gradient.square(), self.rho);
        let steps = slots.zeros("acc_delta");
        let delta = (steps.get() + self.eps).sqrt() / (squares + self.eps).sqrt() * gradient;
        slots.average("acc_delta", &delta.square(), self.rho);
        weight - delta * slots.lr()
    }
}
