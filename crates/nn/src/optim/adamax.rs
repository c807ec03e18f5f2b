//! Adamax (Kingma and Ba, 2014): Adam with the largest magnitude in place of the mean square.

use thalweg_tensor::Tensor;

use crate::optim::{Rule, Slots, with_defaults};

/// w ← w − lr · m / u, where u ← max(β₂ u, |g| + eps).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adamax {
    /// What the average of g and the largest |g| keep from step to step.
    pub betas: (f64, f64),
    /// Keeps the divisor from 0.
    pub eps: f64,
}

impl Default for Adamax {
    fn default() -> Self {
        Self { betas: (0.9, 0.999), eps: 1e-8 }
    }
}

with_defaults!(Adamax);

impl Rule for Adamax {
    fn update(&self, weight: &Tensor, gradient: &Tensor, slots: &mut Slots<'_>) -> Tensor {
        let (beta1, beta2) = self.betas;
        let mean = slots.average("exp_avg", gradient, beta1);
        let slot = slots.zeros("exp_inf");
        let largest = (slot.get() * beta2).maximum(&(gradient.abs() + self.eps));
        slot.set(largest.clone());
        let size = slots.number(&(slots.lr_f64() / slots.bias_correction(beta1)));
        weight - mean / largest * size
    }
}
