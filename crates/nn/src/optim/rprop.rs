//! Resilient back-propagation (Riedmiller and Braun, 1993): for whole batches, by signs alone.

use thalweg_tensor::Tensor;

use crate::optim::{Rule, Slots, with_defaults};

/// Each weight has a step size of its own, which grows while its gradient keeps its sign and shrinks
/// when it turns; a step back is left out. The learning rate is the first step size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rprop {
    /// The factors of a shrinking and of a growing step.
    pub factors: (f64, f64),
    /// The smallest and the largest step.
    pub sizes: (f64, f64),
}

impl Default for Rprop {
    fn default() -> Self {
        Self { factors: (0.5, 1.2), sizes: (1e-6, 50.0) }
    }
}

with_defaults!(Rprop);

impl Rule for Rprop {
    fn update(&self, weight: &Tensor, gradient: &Tensor, slots: &mut Slots<'_>) -> Tensor {
        let (previous, size) = (slots.zeros("prev"), slots.zeros("step_size"));
        let first = slots.step().eq(1.0).broadcast_to(weight.shape());
        let start = slots.lr().broadcast_to(weight.shape());
        let agreement = gradient * previous.get();
        let turned = agreement.lt(0.0);
        let growth = agreement.gt(0.0).where_(self.factors.1, &turned.where_(self.factors.0, 1.0));
        let grown = first.where_(&start, &size.get()) * growth.to_dtype(weight.dtype());
        size.set(grown.clamp(self.sizes.0, self.sizes.1));
        previous.set(turned.where_(0.0, gradient));
        weight - previous.get().sign() * size.get()
    }
}
