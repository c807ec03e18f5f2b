//! `solve`: the X with A X = B for each square matrix A in the last two axes. Refuses singular matrices.

use thalweg_core::{Shape, View, ViewMut};

use crate::apply::run;
use crate::error::{InOp, OpError, fail, or_fail};
use crate::meta::{Meta, arity, require_same_dtype};
use crate::ops::factor::{batch, each, lu::Lu, require_matrix, require_square};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// The solution of a linear system.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Solve;

impl Primitive for Solve {
    const NAME: &'static str = "solve";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [a, b] = arity(Self::NAME, x)?;
        infer_system(Self::NAME, a, b)
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::OUTPUT)
    }

    /// dB = A⁻ᵀ dX; dA = −dB Xᵀ.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let db = run(Solve, &[&g.x(0).t(), g.dy()]);
        g.pair(|| -db.matmul(&g.y().t()), || db.clone())
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let [.., n, cols] = **y.shape() else { unreachable!("`infer` lets matrices through") };
        each([x[0], x[1]], y, |[a, b]| {
            let lu = Lu::new(a, n);
            if lu.is_singular() {
                return Err(OpError::Value { op: Self::NAME, reason: "a matrix is singular" });
            }
            Ok(lu.solve(b, cols))
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let n = x[0].shape.last().copied().unwrap_or(1);
        let flops = x[0].numel() * n * 2 / 3 + 2 * y.numel() * n;
        Cost { flops: flops as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |a, b: &[usize]| Sample::new(Solve, [a, Draw::any(b)]);
        vec![
            call(Draw::definite(4), &[4, 2]),
            call(Draw::float([2, 1, 1], 1.0, 2.0), &[2, 1, 3]),
            call(Draw::definite(1), &[1, 1]),
            call(Draw::definite(2), &[2, 0]),
        ]
    }
}

/// The shape of X in A X = B, without broadcasting.
pub(crate) fn infer_system(op: &'static str, a: &Meta, b: &Meta) -> Result<Meta, OpError> {
    let n = require_square(op, a)?;
    let (rows, _) = require_matrix(op, b)?;
    require_same_dtype(op, a, b)?;
    if n != rows || batch(&a.shape) != batch(&b.shape) {
        return Err(misfit(op, &a.shape, &b.shape));
    }
    Ok(b.clone())
}

fn misfit(op: &'static str, a: &Shape, b: &Shape) -> OpError {
    let hint = "the right side must have as many rows as the square matrices, and batches must broadcast";
    OpError::Shapes { op, left: a.clone(), right: b.clone(), hint }
}

/// Brings A and B to one dtype and one batch and calls `f`. A vector B is one column.
#[track_caller]
pub(crate) fn system(
    op: &'static str,
    a: &Tensor,
    b: &Tensor,
    f: impl Fn(&Tensor, &Tensor) -> Tensor,
) -> Tensor {
    let dtype = a.dtype().promote(b.dtype());
    let (a, b) = (a.to_dtype(dtype).as_float(), b.to_dtype(dtype).as_float());
    if b.rank() == 1 && a.rank() >= 2 {
        return system(op, &a, &b.unsqueeze(-1), f).squeeze(-1);
    }
    if a.rank() < 2 || b.rank() < 2 {
        fail(misfit(op, a.shape(), b.shape()));
    }
    let lead = or_fail(batch(a.shape()).broadcast(&batch(b.shape())).in_op(op));
    let spread = |t: &Tensor| {
        let matrix = &t.shape()[t.rank() - 2..];
        t.broadcast_to(lead.iter().chain(matrix).copied().collect::<Shape>())
    };
    f(&spread(&a), &spread(&b))
}

impl Tensor {
    /// The X with A X = B, for each square matrix in this tensor's last two axes; leading axes broadcast
    /// and a vector B is one column. Panics when a matrix is singular.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let a = Tensor::from([[2.0f32, 0.0], [0.0, 4.0]]);
    /// assert_eq!(a.solve(&Tensor::from([1.0f32, 1.0])).to_vec::<f32>(), [0.5, 0.25]);
    /// ```
    #[track_caller]
    pub fn solve(&self, b: &Tensor) -> Tensor {
        system(Solve::NAME, self, b, |a, b| run(Solve, &[a, b]))
    }

    /// The inverse of each square matrix in the last two axes. Panics when one is singular.
    #[track_caller]
    pub fn inv(&self) -> Tensor {
        or_fail(require_square("inv", &self.as_float().meta().clone()));
        self.solve(&Tensor::eye(self.size(-1), self.dtype()))
    }
}
