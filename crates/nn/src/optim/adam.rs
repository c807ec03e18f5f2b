//! Adam (Kingma and Ba, 2014), AMSGrad (Reddi et al., 2018) and AdamW (Loshchilov and Hutter, 2017).

use thalweg_tensor::Tensor;

use crate::optim::{Decay, Optimizer, Rule, Slots, with_defaults};

/// w ← w − lr · m / (√v + eps), where m and v are averages of g and g², corrected for their start at 0.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adam {
    /// What the averages of g and of g² keep from step to step.
    pub betas: (f64, f64),
    /// Keeps the divisor from 0.
    pub eps: f64,
    /// Whether to divide by the largest v so far.
    pub amsgrad: bool,
}

impl Default for Adam {
    fn default() -> Self {
        Self { betas: (0.9, 0.999), eps: 1e-8, amsgrad: false }
    }
}

with_defaults!(Adam);

/// [`Adam`] whose weight decay shrinks the weights themselves, by 0.01 unless told otherwise.
pub struct AdamW;

impl AdamW {
    /// The optimiser with the usual settings; for others,
    /// `Optimizer::new(Adam { .. }, lr).decay(Decay::Decoupled(share))`.
    #[allow(clippy::new_ret_no_self)] // as for the rules
    pub fn new(lr: f64) -> Optimizer<Adam> {
        Adam::new(lr).decay(Decay::Decoupled(0.01))
    }
}

impl Rule for Adam {
    fn update(&self, weight: &Tensor, gradient: &Tensor, slots: &mut Slots<'_>) -> Tensor {
        let (beta1, beta2) = self.betas;
        let mean = slots.average("exp_avg", gradient, beta1);
        let mut square = slots.average("exp_avg_sq", &gradient.square(), beta2);
        if self.amsgrad {
            let largest = slots.zeros("max_exp_avg_sq");
            square = largest.get().maximum(&square);
            largest.set(square.clone());
        }
        let size = slots.number(&(slots.lr_f64() / slots.bias_correction(beta1)));
        let scale = slots.number(&slots.bias_correction(beta2).sqrt());
        weight - mean / (square.sqrt() / scale + self.eps) * size
    }
}
