//! RMSprop (Hinton, 2012), plain, centred (Graves, 2013) and with momentum.

use thalweg_tensor::Tensor;

use crate::optim::{Rule, Slots, with_defaults};

/// w ← w − lr · g / (√ average of g² + eps).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RmsProp {
    /// What the averages keep from step to step.
    pub alpha: f64,
    /// Keeps the divisor from 0.
    pub eps: f64,
    /// The share of its speed that a weight keeps; 0 for none.
    pub momentum: f64,
    /// Whether to divide by the standard deviation instead.
    pub centered: bool,
}

impl Default for RmsProp {
    fn default() -> Self {
        Self { alpha: 0.99, eps: 1e-8, momentum: 0.0, centered: false }
    }
}

with_defaults!(RmsProp);

impl Rule for RmsProp {
    fn update(&self, weight: &Tensor, gradient: &Tensor, slots: &mut Slots<'_>) -> Tensor {
        let mut spread = slots.average("square_avg", &gradient.square(), self.alpha);
        if self.centered {
            spread = spread - slots.average("grad_avg", gradient, self.alpha).square();
        }
        let step = gradient / (spread.sqrt() + self.eps);
        if self.momentum == 0.0 {
            return weight - step * slots.lr();
        }
        let slot = slots.zeros("momentum_buffer");
        slot.set(slot.get() * self.momentum + step);
        weight - slot.get() * slots.lr()
    }
}
