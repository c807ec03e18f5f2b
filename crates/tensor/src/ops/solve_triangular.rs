//! `solve_triangular`: the X with A X = B, where A is one triangle of each matrix in the last two axes; the
//! other triangle is not read.

use thalweg_core::{View, ViewMut};

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity};
use crate::ops::factor::{each, triangular};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{Side, solve};
use crate::tensor::Tensor;

/// The solution of a triangular system.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct SolveTriangular {
    /// The half of A that counts.
    pub side: Side,
}

impl Primitive for SolveTriangular {
    const NAME: &'static str = "solve_triangular";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [a, b] = arity(Self::NAME, x)?;
        solve::infer_system(Self::NAME, a, b)
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::OUTPUT)
    }

    /// dB = A⁻ᵀ dX; dA = −dB Xᵀ, in the triangle that was read.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let side = if self.side == Side::Lower { Side::Upper } else { Side::Lower };
        let back = SolveTriangular { side };
        let db = run(back, &[&g.x(0).t(), g.dy()]);
        let da = || {
            let full = -db.matmul(&g.y().t());
            if self.side == Side::Lower { full.tril(0) } else { full.triu(0) }
        };
        g.pair(da, || db.clone())
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let [.., n, cols] = **y.shape() else { unreachable!("`infer` lets matrices through") };
        let upper = self.side == Side::Upper;
        each([x[0], x[1]], y, |[a, b]| {
            let x = triangular::solve(a, n, b, cols, upper);
            x.ok_or(OpError::Value { op: Self::NAME, reason: "a diagonal element is zero" })
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let n = x[0].shape.last().copied().unwrap_or(1);
        Cost { flops: (y.numel() * n) as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |side, a, b: &[usize]| Sample::new(SolveTriangular { side }, [a, Draw::any(b)]);
        vec![
            call(Side::Lower, Draw::definite(4), &[4, 2]),
            call(Side::Upper, Draw::definite(3), &[3, 3]),
            call(Side::Lower, Draw::float([2, 1, 1], 1.0, 2.0), &[2, 1, 3]),
            call(Side::Upper, Draw::definite(2), &[2, 0]),
        ]
    }
}

impl Tensor {
    /// The X with A X = B, where A is one triangle of this tensor's last two axes; leading axes broadcast.
    #[track_caller]
    pub fn solve_triangular(&self, b: &Tensor, side: Side) -> Tensor {
        let op = SolveTriangular { side };
        solve::system(SolveTriangular::NAME, self, b, |a, b| run(op.clone(), &[a, b]))
    }
}
