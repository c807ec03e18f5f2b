//! `max_pool_grad`: each element of a pooled gradient, added where its window has its maximum:
//! dx[argmax(window p of x)] += dy[p].

use thalweg_core::{DType, View, ViewMut};
use thalweg_kernels::gemm::OnReady;
use thalweg_kernels::rows::pool;

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity, require_same_dtype, require_same_shape};
use crate::ops::max_pool::{for_each_max, infer_choice};
use crate::ops::pooling::{self, PoolAxis};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::rowwise::{narrow_into, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{MaxPoolIndices, single};

/// x, dy → dx.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct MaxPoolGrad {
    /// The windows along the last axes.
    pub axes: Box<[PoolAxis]>,
}

impl Primitive for MaxPoolGrad {
    const NAME: &'static str = "max_pool_grad";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x, dy] = arity(Self::NAME, x)?;
        let y = infer_choice(Self::NAME, x, &self.axes)?;
        require_same_dtype(Self::NAME, x, dy)?;
        require_same_shape(Self::NAME, &y, dy)?;
        Ok(x.clone())
    }

    fn keep(&self) -> Keep {
        Keep::input(0)
    }

    /// x only chooses where things go, so its gradient is zero almost everywhere; that of dy is read
    /// from the places that were chosen.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let n = self.axes.len();
        let read = || {
            let places = run(MaxPoolIndices { axes: self.axes.clone() }, &[g.x(0)]);
            let shape = places.shape().clone();
            let lead = shape.rank() - n;
            let flat = |t: &crate::tensor::Tensor| {
                let planes: usize = t.shape()[..lead].iter().product();
                let size: usize = t.shape()[lead..].iter().product();
                t.reshape([planes, size])
            };
            flat(g.dy()).gather(1, &flat(&places)).reshape(shape)
        };
        Grad::Inputs(smallvec::smallvec![None, g.want(1, read)])
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let w = pooling::checked(Self::NAME, x[0].shape(), &self.axes);
        let (n_in, n_out) = (w.inputs(), w.outputs());
        let mut sums = vec![0.0f64; y.shape().numel()];
        let dy = widened(x[1]);
        let add = |plane: usize, out: usize, at: usize| sums[plane * n_in + at] += dy[plane * n_out + out];
        for_each_max(&widened(x[0]), &w, add);
        narrow_into(&sums, y);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let w = pooling::checked(Self::NAME, x[0].shape(), &self.axes);
        let Some((size, window)) = w.kernel2d() else { return false };
        let (Some(x), Some(dy)) = (single::operand(x[0]), single::operand(x[1])) else { return false };
        single::result(y, |dx| pool::max_pool2d_backward(&x, size, window, &dy, dx))
    }

    fn is_ready_in_pieces(&self) -> bool {
        true
    }

    fn fast_then(&self, x: &[View<'_>], y: &mut ViewMut<'_>, ready: &OnReady<'_>) -> bool {
        let w = pooling::checked(Self::NAME, x[0].shape(), &self.axes);
        let Some((size, window)) = w.kernel2d().filter(|_| y.dtype() == DType::F32) else { return false };
        let (Some(x), Some(dy)) = (single::operand(x[0]), single::operand(x[1])) else { return false };
        pool::max_pool2d_backward_then(&x, size, window, &dy, y.dense(), Some(ready));
        true
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: x[0].numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        pooling::samples(|axes, _| MaxPoolGrad { axes }, |x, y| vec![Draw::distinct(x), Draw::any(y)])
    }
}
