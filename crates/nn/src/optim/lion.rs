//! Lion (Chen et al., 2023): the sign of a momentum.

use thalweg_tensor::Tensor;

use crate::optim::{Decay, Rule, Slots, with_defaults};

/// w ← w − lr · sign(β₁ m + (1 − β₁) g), then m ← β₂ m + (1 − β₂) g.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lion {
    /// The share of the old momentum in a step, and in the new momentum.
    pub betas: (f64, f64),
}

impl Default for Lion {
    fn default() -> Self {
        Self { betas: (0.9, 0.99) }
    }
}

with_defaults!(Lion);

impl Rule for Lion {
    fn update(&self, weight: &Tensor, gradient: &Tensor, slots: &mut Slots<'_>) -> Tensor {
        let (beta1, beta2) = self.betas;
        let before = slots.zeros("exp_avg").get();
        slots.average("exp_avg", gradient, beta2);
        weight - (before * beta1 + gradient * (1.0 - beta1)).sign() * slots.lr()
    }

    fn decay(&self) -> Decay {
        Decay::Decoupled(0.0)
    }
}
