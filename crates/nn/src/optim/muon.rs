//! Muon (Jordan et al., 2024): momentum made orthogonal.

use thalweg_core::DType;
use thalweg_tensor::Tensor;

use crate::optim::adam::Adam;
use crate::optim::{Decay, Rule, Slots, with_defaults};

/// Moves matrices along the nearest orthogonal matrix to their momentum. Parameters that are no matrix
/// (biases, norms, convolutions) are moved by Adam at the same rate; give them a
/// [`Group`](crate::Group) with a factor of its own, and also embeddings, which are matrices in shape only.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Muon {
    /// What the momentum keeps from step to step.
    pub momentum: f64,
    /// Whether to look ahead.
    pub nesterov: bool,
    /// How many Newton-Schulz iterations approach the orthogonal matrix.
    pub iterations: usize,
    /// Keeps a divisor from 0.
    pub eps: f64,
    /// For everything that is no matrix.
    pub others: Adam,
}

impl Default for Muon {
    fn default() -> Self {
        Self { momentum: 0.95, nesterov: true, iterations: 5, eps: 1e-7, others: Adam::default() }
    }
}

with_defaults!(Muon);

/// A quintic with the steepest slope at 0 that keeps singular values near 1, from Jordan's notes.
const COEFFICIENTS: [f64; 3] = [3.4445, -4.7750, 2.0315];

impl Rule for Muon {
    fn update(&self, weight: &Tensor, gradient: &Tensor, slots: &mut Slots<'_>) -> Tensor {
        let &[rows, cols] = &weight.shape()[..] else {
            return self.others.update(weight, gradient, slots);
        };
        let mut direction = slots.average("momentum_buffer", gradient, self.momentum);
        if self.nesterov {
            direction = direction * self.momentum + gradient * (1.0 - self.momentum);
        }
        // A tall matrix has smaller entries for the same singular values.
        let stretch = (rows as f64 / cols as f64).max(1.0).sqrt();
        weight - self.orthogonal(&direction) * slots.number(&(slots.lr_f64() * stretch))
    }

    fn decay(&self) -> Decay {
        Decay::Decoupled(0.1)
    }
}

impl Muon {
    /// U S′ Vᵀ for x = U S Vᵀ, where S′ is near the identity.
    fn orthogonal(&self, x: &Tensor) -> Tensor {
        let tall = x.size(0) > x.size(1);
        let [a, b, c] = COEFFICIENTS;
        let wide = if tall { x.t() } else { x.clone() }.to_dtype(DType::F32);
        let norm = wide.square().sum(()).sqrt().clamp_min(self.eps);
        let mut wide = wide / norm;
        for _ in 0..self.iterations {
            let gram = wide.matmul(&wide.t());
            let quintic = &gram * b + gram.matmul(&gram) * c;
            wide = &wide * a + quintic.matmul(&wide);
        }
        let result = if tall { wide.t() } else { wide };
        result.to_dtype(x.dtype())
    }
}
