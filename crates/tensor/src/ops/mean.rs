//! `mean`: the arithmetic mean over some axes, which disappear. Of no elements it is NaN.

use smallvec::{SmallVec, smallvec};
use thalweg_core::{View, ViewMut};
use thalweg_kernels::rows::axis::sum_axis;

use crate::apply::run;
use crate::args::Axes;
use crate::error::{OpError, or_fail};
use crate::meta::{Meta, arity, require_float};
use crate::ops::fast_reduction::fast_axes;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::reduction;
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// The mean over some axes. A kernel of its own keeps the sum out of half precision, where it would
/// overflow.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Mean {
    /// The axes that disappear, in ascending order.
    pub axes: SmallVec<[usize; 4]>,
}

impl Primitive for Mean {
    const NAME: &'static str = "mean";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        require_float(Self::NAME, x)?;
        reduction::infer(Self::NAME, x, &self.axes)
    }

    fn keep(&self) -> Keep {
        Keep::METAS
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let shape = &g.meta(0).shape;
        let share = g.dy() / reduction::count(shape, &self.axes) as f64;
        Grad::one(share.reshape(reduction::kept(shape, &self.axes)).broadcast_to(shape))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        reduction::by_rows(x[0], &self.axes, y, |row: &[f64]| row.iter().sum::<f64>() / row.len() as f64);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let n = reduction::count(x[0].shape(), &self.axes) as f32;
        fast_axes(x[0], &self.axes, y, sum_axis, |y| y.iter_mut().for_each(|y| *y /= n))
    }

    fn on_rows(&self, x: &[&Meta]) -> Option<(usize, Self)> {
        Some((reduction::row(&x[0].shape, &self.axes)?, Mean { axes: smallvec![1] }))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: x[0].numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        Some(x[0].sum(&self.axes[..]) / reduction::count(x[0].shape(), &self.axes) as f64)
    }

    fn samples() -> Vec<Sample> {
        reduction::samples(|axes| Mean { axes }, Draw::any)
    }
}

impl Tensor {
    /// The mean over some axes, `()` for all. Integers are converted to f32.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let x = Tensor::from([[1.0f32, 2.0], [3.0, 6.0]]);
    /// assert_eq!(x.mean(()).item::<f32>(), 3.0);
    /// assert_eq!(x.mean(0).to_vec::<f32>(), [2.0, 4.0]);
    /// ```
    #[track_caller]
    pub fn mean(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = or_fail(axes.into().resolve(Mean::NAME, self.shape()));
        run(Mean { axes }, &[&self.as_float()])
    }

    /// [`Tensor::mean`], with the axes kept at size 1.
    #[track_caller]
    pub fn mean_keepdim(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = or_fail(axes.into().resolve(Mean::NAME, self.shape()));
        let shape = reduction::kept(self.shape(), &axes);
        run(Mean { axes }, &[&self.as_float()]).reshape(shape)
    }
}
