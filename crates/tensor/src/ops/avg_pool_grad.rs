//! `avg_pool_grad`: each element of a pooled gradient, spread evenly over its window; the adjoint of
//! `avg_pool`.

use smallvec::SmallVec;
use thalweg_core::{Shape, View, ViewMut};
use thalweg_kernels::rows::pool;

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity, require_float};
use crate::ops::avg_pool::Divisor;
use crate::ops::pooling::{self, PoolAxis};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::rowwise::{narrow_into, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{AvgPool, single};

/// dy → dx.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct AvgPoolGrad {
    /// The windows along the last axes.
    pub axes: Box<[PoolAxis]>,
    /// By what sums are divided.
    pub divisor: Divisor,
    /// The sizes of the axes that were pooled.
    pub input: SmallVec<[usize; 3]>,
}

impl Primitive for AvgPoolGrad {
    const NAME: &'static str = "avg_pool_grad";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [dy] = arity(Self::NAME, x)?;
        require_float(Self::NAME, dy)?;
        let n = self.axes.len();
        if dy.shape.rank() < n {
            return Err(OpError::Rank {
                op: Self::NAME,
                want: "as many as are pooled",
                shape: dy.shape.clone(),
            });
        }
        let lead = dy.shape.rank() - n;
        let x: Shape = dy.shape[..lead].iter().chain(&self.input).copied().collect();
        let (want, _) = pooling::windows(Self::NAME, &x, &self.axes)?;
        if want != dy.shape {
            let hint = "the gradient must have the shape of the pooled result";
            return Err(OpError::Shapes { op: Self::NAME, left: dy.shape.clone(), right: want, hint });
        }
        Ok(dy.with_shape(x))
    }

    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        Grad::one(run(AvgPool { axes: self.axes.clone(), divisor: self.divisor }, &[g.dy()]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let w = pooling::checked(Self::NAME, y.shape(), &self.axes);
        let (dy, mut sums) = (widened(x[0]), vec![0.0; y.shape().numel()]);
        let planes = dy.chunks_exact(w.outputs().max(1)).zip(sums.chunks_exact_mut(w.inputs().max(1)));
        for (dy, sums) in planes {
            for (out, dy) in dy.iter().enumerate() {
                let share = dy / self.divisor.of(&w, out);
                w.positions(out).for_each(|at| sums[at] += share);
            }
        }
        narrow_into(&sums, y);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let w = pooling::checked(Self::NAME, y.shape(), &self.axes);
        let (Some((size, window)), Some(divisor)) = (w.kernel2d(), self.divisor.kernel()) else {
            return false;
        };
        let Some(dy) = single::operand(x[0]) else { return false };
        single::result(y, |dx| pool::avg_pool2d_backward(&dy, size, window, divisor, dx))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: y.numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let with = |divisor| {
            let op = move |axes: Box<[PoolAxis]>, x: &Shape| {
                let input = x[x.rank() - axes.len()..].into();
                AvgPoolGrad { axes, divisor, input }
            };
            pooling::samples(op, |_, y| vec![Draw::any(y)])
        };
        [Divisor::Padded, Divisor::Inside, Divisor::Fixed(3)].into_iter().flat_map(with).collect()
    }
}
