//! RAdam (Liu et al., 2019): Adam that trusts its variance only once there is enough of it.

use thalweg_tensor::Tensor;

use crate::optim::{Rule, Slots, with_defaults};

/// Momentum at first; Adam with a growing share as the average of g² covers more steps.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RAdam {
    /// What the averages of g and of g² keep from step to step.
    pub betas: (f64, f64),
    /// Keeps the divisor from 0.
    pub eps: f64,
}

impl Default for RAdam {
    fn default() -> Self {
        Self { betas: (0.9, 0.999), eps: 1e-8 }
    }
}

with_defaults!(RAdam);

impl Rule for RAdam {
    fn update(&self, weight: &Tensor, gradient: &Tensor, slots: &mut Slots<'_>) -> Tensor {
        let (beta1, beta2) = self.betas;
        let mean = slots.average("exp_avg", gradient, beta1);
        let square = slots.average("exp_avg_sq", &gradient.square(), beta2);
        let size = slots.lr_f64() / slots.bias_correction(beta1);
        let correction = slots.bias_correction(beta2);
        // How many steps the average of g² stands for: now, and in the long run.
        let most = 2.0 / (1.0 - beta2) - 1.0;
        let power = (slots.step() * beta2.ln()).exp();
        let rho = most - slots.step() * 2.0 * power / &correction;
        let enough = rho.gt(5.0);
        // Where there are too few the root may be that of a negative number; it is not used there.
        let safe = enough.where_(&rho, 6.0);
        let rectified =
            ((&safe - 4.0) * (&safe - 2.0) * most / (&safe * ((most - 4.0) * (most - 2.0)))).sqrt();
        let adaptive = slots.number(&(rectified * correction.sqrt())) / (square.sqrt() + self.eps);
        let factor = enough.broadcast_to(weight.shape()).where_(&adaptive, 1.0);
        weight - mean * factor * slots.number(&size)
    }
}
