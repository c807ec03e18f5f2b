//! Averaged stochastic gradient descent (Polyak and Juditsky, 1992).

use thalweg_tensor::Tensor;

use crate::optim::{Rule, Slots, with_defaults};

/// Descent with a slowly falling rate; the slot `ax` holds the average of the weights since `start`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Asgd {
    /// The decay of the weights.
    pub lambda: f64,
    /// The power with which the rate falls.
    pub alpha: f64,
    /// The step at which averaging begins.
    pub start: f64,
}

impl Default for Asgd {
    fn default() -> Self {
        Self { lambda: 1e-4, alpha: 0.75, start: 1e6 }
    }
}

with_defaults!(Asgd);

impl Rule for Asgd {
    fn update(&self, weight: &Tensor, gradient: &Tensor, slots: &mut Slots<'_>) -> Tensor {
        let (lr, before) = (slots.lr_f64(), slots.step() - 1.0);
        // lr / (1 + λ lr t)^α with the t of the step before.
        let fall = ((&before * lr * self.lambda).log1p() * -self.alpha).exp();
        let rate = lr * fall;
        let shrink = slots.number(&(1.0 - &rate * self.lambda));
        let moved = weight * shrink - gradient * slots.number(&rate);
        let share = slots.number(&(1.0 / (before - self.start).clamp_min(1.0)));
        let average = slots.zeros("ax");
        average.set(average.get() + (&moved - average.get()) * share);
        moved
    }
}
