//! AdaGrad (Duchi, Hazan and Singer, 2011).

use thalweg_tensor::Tensor;

use crate::optim::{Rule, Slots, with_defaults};

/// s ← s + g², w ← w − lr · g / (√s + eps): the more a weight has moved, the slower it moves.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adagrad {
    /// What the rate loses with time: lr / (1 + (step − 1) · lr_decay).
    pub lr_decay: f64,
    /// What the sums start with.
    pub initial_sum: f64,
    /// Keeps the divisor from 0.
    pub eps: f64,
}

impl Default for Adagrad {
    fn default() -> Self {
        Self { lr_decay: 0.0, initial_sum: 0.0, eps: 1e-10 }
    }
}

with_defaults!(Adagrad);

impl Rule for Adagrad {
    fn update(&self, weight: &Tensor, gradient: &Tensor, slots: &mut Slots<'_>) -> Tensor {
        let slot = slots.slot("sum", || Tensor::full(weight.shape(), self.initial_sum, weight.dtype()));
        let sum = slot.get() + gradient.square();
        slot.set(sum.clone());
        let lr = slots.lr_f64() / (1.0 + (slots.step() - 1.0) * self.lr_decay);
        weight - gradient / (sum.sqrt() + self.eps) * slots.number(&lr)
    }
}
