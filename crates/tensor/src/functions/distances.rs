//! Distances and angles between vectors.

use crate::error::{InOp, OpError, fail, or_fail};
use crate::functions::reductions::root_or_zero;
use crate::tensor::Tensor;

/// Rows from which euclidean distances come from one matrix product, as in PyTorch.
const MANY_ROWS: usize = 25;

impl Tensor {
    /// x · y / (max(‖x‖, eps) · max(‖y‖, eps)) along an axis. PyTorch's eps is 1e-8.
    #[track_caller]
    pub fn cosine_similarity(&self, other: &Tensor, axis: isize, eps: f64) -> Tensor {
        let op = "cosine_similarity";
        let shape = or_fail(self.shape().broadcast(other.shape()).in_op(op));
        or_fail(shape.axis(axis).in_op(op));
        let (a, b) = (self.as_float().broadcast_to(&shape), other.as_float().broadcast_to(&shape));
        let norm = |t: &Tensor| t.vector_norm(2.0, axis).clamp_min(eps);
        (&a * &b).sum(axis) / (norm(&a) * norm(&b))
    }

    /// ‖x − y + eps‖ₚ along the last axis. PyTorch's p is 2 and its eps is 1e-6.
    #[track_caller]
    pub fn pairwise_distance(&self, other: &Tensor, p: f64, eps: f64) -> Tensor {
        (self - other + eps).vector_norm(p, -1)
    }

    /// The p-norm distance between every row of one matrix and every row of another: (…, m, k) and
    /// (…, n, k) → (…, m, n). Many euclidean distances are computed by one matrix product, which
    /// loses digits where points nearly coincide.
    #[track_caller]
    pub fn cdist(&self, other: &Tensor, p: f64) -> Tensor {
        let op = "cdist";
        for t in [self, other] {
            if t.rank() < 2 {
                fail(OpError::Rank { op, want: "at least 2 (rows, columns)", shape: t.shape().clone() });
            }
        }
        if self.size(-1) != other.size(-1) || p < 0.0 || p.is_nan() {
            let hint = "the last axes must have equal size, and p must not be negative";
            fail(OpError::Shapes { op, left: self.shape().clone(), right: other.shape().clone(), hint });
        }
        let (a, b) = (self.as_float(), other.as_float());
        if p == 2.0 && (a.size(-2) > MANY_ROWS || b.size(-2) > MANY_ROWS) {
            let squares = a.square().sum_keepdim(-1) + b.square().sum_keepdim(-1).t();
            let distance = (squares - a.matmul(&b.t()) * 2.0).clamp_min(0.0);
            return root_or_zero(&distance, 2.0);
        }
        (a.unsqueeze(-2) - b.unsqueeze(-3)).vector_norm(p, -1)
    }
}
