//! NAdam (Dozat, 2016): Adam with Nesterov's momentum.

use thalweg_tensor::Tensor;

use crate::optim::{Rule, Slots, with_defaults};

/// Adam that looks ahead by the momentum of the next step, which grows with time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NAdam {
    /// What the averages of g and of g² keep from step to step.
    pub betas: (f64, f64),
    /// Keeps the divisor from 0.
    pub eps: f64,
    /// How fast the momentum of a step, β₁ (1 − ½ · 0.96^(step · this)), reaches β₁.
    pub momentum_decay: f64,
}

impl Default for NAdam {
    fn default() -> Self {
        Self { betas: (0.9, 0.999), eps: 1e-8, momentum_decay: 4e-3 }
    }
}

with_defaults!(NAdam);

impl Rule for NAdam {
    fn update(&self, weight: &Tensor, gradient: &Tensor, slots: &mut Slots<'_>) -> Tensor {
        let (beta1, beta2) = self.betas;
        let momentum =
            |step: &Tensor| (1.0 - (step * (self.momentum_decay * 0.96f64.ln())).exp() * 0.5) * beta1;
        let (mu, next) = (momentum(slots.step()), momentum(&(slots.step() + 1.0)));
        let product = slots.scalar("mu_product", 1.0);
        product.set(product.get() * &mu);
        let mean = slots.average("exp_avg", gradient, beta1);
        let square = slots.average("exp_avg_sq", &gradient.square(), beta2);
        let scale = slots.number(&slots.bias_correction(beta2));
        let divisor = (square / scale).sqrt() + self.eps;
        let now = slots.lr_f64() * (1.0 - &mu) / (1.0 - product.get());
        let ahead = slots.lr_f64() * &next / (1.0 - product.get() * &next);
        weight - (gradient * slots.number(&now) + mean * slots.number(&ahead)) / divisor
    }
}
