//! Points in space: rows of equal width.

use thalweg_core::DType;
use thalweg_tensor::Tensor;

use crate::cluster::Step;
use crate::error::ClusterError;

/// Rows of equal width, at least as many as groups are looked for.
pub(super) struct Points {
    values: Vec<f32>, // (n, width)
    pub width: usize,
}

impl Points {
    /// The rows of a matrix. Refuses fewer than `k`, and numbers that are none.
    pub fn new(x: &Tensor, k: usize) -> Result<Self, ClusterError> {
        let x = x.to_dtype(DType::F32);
        if x.rank() != 2 || x.size(1) == 0 {
            return Err(ClusterError::Samples {
                problem: format!("points are rows of a matrix, not {}", x.shape()),
            });
        }
        let points = Self { values: x.to_vec::<f32>(), width: x.size(1) };
        if k == 0 || k > points.len() {
            let problem =
                format!("{} points cannot make {k} groups; choose 1 to {}", points.len(), points.len());
            return Err(ClusterError::Samples { problem });
        }
        if let Some(at) = points.values.iter().position(|v| !v.is_finite()) {
            let problem = format!("point {} is not finite", at / points.width);
            return Err(ClusterError::Samples { problem });
        }
        Ok(points)
    }

    pub fn len(&self) -> usize {
        self.values.len() / self.width
    }

    pub fn all(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.width)
    }

    /// Those of one slot.
    pub fn of(&self, step: Step) -> impl Iterator<Item = &[f32]> {
        self.all().skip(step.slot.0 as usize).step_by(step.n_slots)
    }

    /// Where group `i` of `k` begins: at one of the points.
    pub fn first(&self, i: usize, k: usize) -> &[f32] {
        &self.values[i * self.len() / k * self.width..][..self.width]
    }
}
