//! Functions of matrices that are a few ops.

use crate::error::or_fail;
use crate::ops::factor::{require_matrix, require_square};
use crate::tensor::Tensor;

/// Which norm of a matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum MatrixNorm {
    /// The root of the sum of all squares.
    #[default]
    Frobenius,
    /// The sum of the singular values.
    Nuclear,
    /// The largest singular value.
    Spectral,
    /// The largest sum of magnitudes in a column.
    One,
    /// The largest sum of magnitudes in a row.
    Infinity,
}

impl Tensor {
    /// The n-th power of each square matrix in the last two axes; of the inverse for a negative n.
    #[track_caller]
    pub fn matrix_power(&self, n: i32) -> Tensor {
        let x = self.as_float();
        or_fail(require_square("matrix_power", x.meta()));
        let mut square = if n < 0 { x.inv() } else { x.clone() };
        let mut rest = n.unsigned_abs();
        let mut power: Option<Tensor> = None;
        while rest > 0 {
            if rest & 1 == 1 {
                power = Some(power.map_or_else(|| square.clone(), |p| p.matmul(&square)));
            }
            rest >>= 1;
            if rest > 0 {
                square = square.matmul(&square);
            }
        }
        power.unwrap_or_else(|| x.eye_like().broadcast_to(x.shape()))
    }

    /// A norm of each matrix in the last two axes.
    #[track_caller]
    pub fn matrix_norm(&self, norm: MatrixNorm) -> Tensor {
        let x = self.as_float();
        or_fail(require_matrix("matrix_norm", x.meta()));
        match norm {
            MatrixNorm::Frobenius => x.vector_norm(2.0, [-2, -1]),
            MatrixNorm::Nuclear => x.svdvals().sum(-1),
            MatrixNorm::Spectral => x.svdvals().amax(-1),
            MatrixNorm::One => x.abs().sum(-2).amax(-1),
            MatrixNorm::Infinity => x.abs().sum(-1).amax(-1),
        }
    }
}
