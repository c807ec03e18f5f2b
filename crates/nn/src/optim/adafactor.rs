//! Adafactor (Shazeer and Stern, 2018): mean squares kept as rows and columns.

use thalweg_core::DType;
use thalweg_tensor::Tensor;

use crate::optim::{Decay, Rule, Slots, with_defaults};

/// Adaptive steps with memory for the sum of the sizes of a matrix, not for their product. Steps are
/// relative to the scale of the weights; the learning rate is the largest share.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Adafactor {
    /// The exponent of the step number in the share of the newest square.
    pub beta2_decay: f64,
    /// The smallest scale of weights.
    pub smallest_scale: f64,
    /// The largest root mean square of an update.
    pub largest_update: f64,
}

impl Default for Adafactor {
    fn default() -> Self {
        Self { beta2_decay: -0.8, smallest_scale: 1e-3, largest_update: 1.0 }
    }
}

with_defaults!(Adafactor);

impl Rule for Adafactor {
    fn update(&self, weight: &Tensor, gradient: &Tensor, slots: &mut Slots<'_>) -> Tensor {
        let eps = if weight.dtype() == DType::F64 { f64::EPSILON } else { f64::from(f32::EPSILON) };
        let share = slots.number(&(slots.step().log() * self.beta2_decay).exp());
        let towards = |slot: thalweg_tensor::Param, new: Tensor| {
            let old = slot.get();
            let moved = &old + (new - &old) * &share;
            slot.set(moved.clone());
            moved
        };
        let squares = gradient.square();
        let variance = if weight.rank() > 1 {
            let (by_row, by_col) = (squares.mean_keepdim(-1), squares.mean_keepdim(-2));
            let zeros = |t: &Tensor| Tensor::zeros(t.shape(), t.dtype());
            let rows = towards(slots.slot("row_var", || zeros(&by_row)), by_row);
            let cols = towards(slots.slot("col_var", || zeros(&by_col)), by_col);
            let mean = rows.mean_keepdim(-2).clamp_min(eps);
            rows.matmul(&cols) / mean
        } else {
            towards(slots.zeros("variance"), squares)
        };
        let update = variance.clamp_min(eps * eps).rsqrt() * gradient;
        let rms = |t: &Tensor| t.square().mean(()).sqrt();
        let rate = slots.lr_f64().minimum(&slots.step().rsqrt());
        let size = slots.number(&rate) * rms(weight).clamp_min(self.smallest_scale);
        weight - &update * (size / (rms(&update) / self.largest_update).clamp_min(1.0))
    }

    fn decay(&self) -> Decay {
        Decay::Decoupled(0.0)
    }
}
