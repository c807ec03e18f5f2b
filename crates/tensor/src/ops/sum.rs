//! `sum`: the sum over some axes, which disappear. Of no elements it is 0; truth values are counted as i64.

use smallvec::{SmallVec, smallvec};
use thalweg_core::{DType, View, ViewMut};
use thalweg_kernels::rows::axis::sum_axis;

use crate::apply::run;
use crate::args::Axes;
use crate::error::{OpError, or_fail};
use crate::meta::{Meta, arity};
use crate::ops::fast_reduction::{fast_axes, fast_plain};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::reduction;
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// The sum over some axes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Sum {
    /// The axes that disappear, in ascending order.
    pub axes: SmallVec<[usize; 4]>,
}

impl Primitive for Sum {
    const NAME: &'static str = "sum";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        let y = reduction::infer(Self::NAME, x, &self.axes)?;
        Ok(if x.dtype == DType::Bool { y.with_dtype(DType::I64) } else { y })
    }

    fn keep(&self) -> Keep {
        Keep::METAS
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let shape = &g.meta(0).shape;
        Grad::one(g.dy().reshape(reduction::kept(shape, &self.axes)).broadcast_to(shape))
    }

    /// Accumulates in f64 or i64, in row-major order.
    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        if x[0].dtype().is_float() {
            reduction::fold(x[0], &self.axes, y, 0.0f64, |sum, v: f64| sum + v);
        } else {
            reduction::fold(x[0], &self.axes, y, 0i64, |sum: i64, v: i64| sum.wrapping_add(v));
        }
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let (x, axes) = (x[0], &self.axes[..]);
        match x.dtype() {
            DType::F64 => fast_plain(x, axes, y.dense(), |a: f64, b: f64| a + b, |a, b| a + b),
            DType::I64 => fast_plain(x, axes, y.dense(), i64::wrapping_add, i64::wrapping_add),
            DType::Bool => fast_plain(x, axes, y.dense(), |n: i64, b: bool| n + i64::from(b), |a, b| a + b),
            _ => fast_axes(x, axes, y, sum_axis, |_| {}),
        }
    }

    fn on_rows(&self, x: &[&Meta]) -> Option<(usize, Self)> {
        Some((reduction::row(&x[0].shape, &self.axes)?, Sum { axes: smallvec![1] }))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: x[0].numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let mut samples = reduction::samples(|axes| Sum { axes }, Draw::any);
        samples.extend(reduction::samples(|axes| Sum { axes }, Draw::bool));
        samples.extend(reduction::samples(|axes| Sum { axes }, |shape| Draw::int(shape, -9, 9)));
        samples
    }
}

impl Tensor {
    /// The sum over some axes, `()` for all. Integers add up as i64, `bool` counts.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let x = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]);
    /// assert_eq!(x.sum(()).item::<f32>(), 10.0);
    /// assert_eq!(x.sum(-1).to_vec::<f32>(), [3.0, 7.0]);
    /// ```
    #[track_caller]
    pub fn sum(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = or_fail(axes.into().resolve(Sum::NAME, self.shape()));
        run(Sum { axes }, &[&self.as_summable()])
    }

    /// [`Tensor::sum`], with the axes kept at size 1.
    #[track_caller]
    pub fn sum_keepdim(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = or_fail(axes.into().resolve(Sum::NAME, self.shape()));
        let shape = reduction::kept(self.shape(), &axes);
        run(Sum { axes }, &[&self.as_summable()]).reshape(shape)
    }

    fn as_summable(&self) -> Tensor {
        match self.dtype().is_int() {
            true => self.to_dtype(DType::I64),
            false => self.clone(),
        }
    }
}
