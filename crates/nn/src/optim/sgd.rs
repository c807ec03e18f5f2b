//! Stochastic gradient descent, with momentum (Polyak, 1964) or Nesterov's (Sutskever et al., 2013).

use thalweg_tensor::Tensor;

use crate::optim::{Optimizer, Rule, Slots, with_defaults};

/// w ← w − lr · g, or with momentum m: v ← m v + (1 − dampening) g, w ← w − lr · v.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Sgd {
    /// The share of its speed that a weight keeps; 0 for none.
    pub momentum: f64,
    /// The share of the gradient that does not reach the speed, after the first step.
    pub dampening: f64,
    /// Whether to look ahead: w ← w − lr · (g + m v).
    pub nesterov: bool,
}

with_defaults!(Sgd);

impl Optimizer<Sgd> {
    /// With momentum.
    pub fn momentum(mut self, momentum: f64) -> Self {
        self.rule_mut().momentum = momentum;
        self
    }

    /// With Nesterov's momentum.
    pub fn nesterov(mut self, momentum: f64) -> Self {
        (self.rule_mut().momentum, self.rule_mut().nesterov) = (momentum, true);
        self
    }
}

impl Rule for Sgd {
    fn update(&self, weight: &Tensor, gradient: &Tensor, slots: &mut Slots<'_>) -> Tensor {
        if self.momentum == 0.0 {
            return weight - gradient * slots.lr();
        }
        let slot = slots.zeros("momentum_buffer");
        let mut share = 1.0 - self.dampening;
        let mut fresh = gradient.clone();
        if self.dampening != 0.0 {
            // The first gradient counts in full.
            let first = slots.number(&slots.step().eq(1.0).where_(1.0, &(slots.step().ones_like() * share)));
            (fresh, share) = (gradient * first, 1.0);
        }
        let speed = slot.get() * self.momentum + fresh * share;
        slot.set(speed.clone());
        let direction = if self.nesterov { gradient + speed * self.momentum } else { speed };
        weight - direction * slots.lr()
    }
}
