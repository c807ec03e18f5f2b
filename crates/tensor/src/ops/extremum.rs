//! `extremum`: the largest or smallest element over some axes, which disappear. NaN wins; of no
//! elements there is none.

use smallvec::{SmallVec, smallvec};
use thalweg_core::{View, ViewMut};
use thalweg_kernels::rows::axis::{max_axis, min_axis};

use crate::apply::run;
use crate::args::Axes;
use crate::error::{OpError, or_fail};
use crate::meta::{Meta, arity};
use crate::ops::fast_reduction::fast_axes;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::reduction;
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// Which end of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Extreme {
    /// The largest.
    Max,
    /// The smallest.
    Min,
}

impl Extreme {
    /// Whether `new` takes the place of `best`. NaN takes it and keeps it; the first of equals does.
    pub(crate) fn beats<T: Copy + PartialOrd>(self, new: T, best: T) -> bool {
        let nan = |v: T| v.partial_cmp(&v).is_none();
        let further = match self {
            Extreme::Max => new > best,
            Extreme::Min => new < best,
        };
        !nan(best) && (further || nan(new))
    }
}

/// The largest or smallest element over some axes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Extremum {
    /// Which of the two.
    pub kind: Extreme,
    /// The axes that disappear, in ascending order.
    pub axes: SmallVec<[usize; 4]>,
}

impl Extremum {
    /// The name that users know.
    fn method(&self) -> &'static str {
        match self.kind {
            Extreme::Max => "amax",
            Extreme::Min => "amin",
        }
    }
}

impl Primitive for Extremum {
    const NAME: &'static str = "extremum";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(self.method(), x)?;
        let y = reduction::infer(self.method(), x, &self.axes)?;
        if reduction::count(&x.shape, &self.axes) == 0 {
            return Err(OpError::Empty { op: self.method(), shape: x.shape.clone() });
        }
        Ok(y)
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::OUTPUT)
    }

    /// Equal extremes share the gradient evenly.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let x = g.x(0);
        let shape = reduction::kept(x.shape(), &self.axes);
        let chosen = x.eq(&g.y().reshape(&shape)).to_dtype(x.dtype());
        let share = g.dy().reshape(&shape) / chosen.sum(&self.axes[..]).reshape(&shape);
        Grad::one(chosen * share)
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let kind = self.kind;
        if y.dtype().is_float() {
            let worst = if kind == Extreme::Max { f64::NEG_INFINITY } else { f64::INFINITY };
            reduction::fold(x[0], &self.axes, y, worst, |a, b| if kind.beats(b, a) { b } else { a });
        } else {
            let worst = if kind == Extreme::Max { i64::MIN } else { i64::MAX };
            reduction::fold(x[0], &self.axes, y, worst, |a, b| if kind.beats(b, a) { b } else { a });
        }
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let kernel = if self.kind == Extreme::Max { max_axis } else { min_axis };
        fast_axes(x[0], &self.axes, y, kernel, |_| {})
    }

    fn on_rows(&self, x: &[&Meta]) -> Option<(usize, Self)> {
        Some((reduction::row(&x[0].shape, &self.axes)?, Extremum { kind: self.kind, axes: smallvec![1] }))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: x[0].numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let of = |kind| reduction::samples(move |axes| Extremum { kind, axes }, Draw::distinct);
        let whole = |kind| Sample::new(Extremum { kind, axes: smallvec![1] }, [Draw::int([3, 4], -9, 9)]);
        [of(Extreme::Max), of(Extreme::Min), vec![whole(Extreme::Max), whole(Extreme::Min)]].concat()
    }
}

impl Tensor {
    /// The largest element over some axes, `()` for all. NaN wins.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let x = Tensor::from([[1.0f32, 5.0], [3.0, 4.0]]);
    /// assert_eq!(x.amax(()).item::<f32>(), 5.0);
    /// assert_eq!(x.amax(0).to_vec::<f32>(), [3.0, 5.0]);
    /// ```
    #[track_caller]
    pub fn amax(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = or_fail(axes.into().resolve("amax", self.shape()));
        run(Extremum { kind: Extreme::Max, axes }, &[self])
    }

    /// [`Tensor::amax`], with the axes kept at size 1.
    #[track_caller]
    pub fn amax_keepdim(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = or_fail(axes.into().resolve("amax", self.shape()));
        let shape = reduction::kept(self.shape(), &axes);
        run(Extremum { kind: Extreme::Max, axes }, &[self]).reshape(shape)
    }

    /// The smallest element over some axes, `()` for all. NaN wins.
    #[track_caller]
    pub fn amin(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = or_fail(axes.into().resolve("amin", self.shape()));
        run(Extremum { kind: Extreme::Min, axes }, &[self])
    }

    /// [`Tensor::amin`], with the axes kept at size 1.
    #[track_caller]
    pub fn amin_keepdim(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = or_fail(axes.into().resolve("amin", self.shape()));
        let shape = reduction::kept(self.shape(), &axes);
        run(Extremum { kind: Extreme::Min, axes }, &[self]).reshape(shape)
    }
}
