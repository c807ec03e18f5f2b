//! `max_pool`: the largest element of each window; NaN if the window holds one. Padding is −∞.

use thalweg_core::{View, ViewMut};
use thalweg_kernels::rows::pool;

use crate::apply::run;
use crate::args::PerAxis;
use crate::error::{OpError, or_fail};
use crate::meta::{Meta, arity, require_float};
use crate::ops::pooling::{self, PoolAxes, PoolAxis, Sliding, Windows};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::rowwise::{narrow_into, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{MaxPoolGrad, MaxPoolIndices, single};
use crate::tensor::Tensor;

/// The largest element of each window.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct MaxPool {
    /// The windows along the last axes.
    pub axes: Box<[PoolAxis]>,
}

/// The result of choosing one element per window.
pub(crate) fn infer_choice(op: &'static str, x: &Meta, axes: &[PoolAxis]) -> Result<Meta, OpError> {
    require_float(op, x)?;
    let (shape, windows) = pooling::windows(op, &x.shape, axes)?;
    if windows.some_empty() {
        let (value, shape) = (format!("{axes:?}"), x.shape.clone());
        let need = "a window lies in the padding alone and has no maximum";
        return Err(OpError::Argument { op, name: "windows", value, shape, need });
    }
    Ok(x.with_shape(shape))
}

/// Where the largest of some elements is: the first of equals, the last NaN.
fn arg_max(x: &[f64], positions: impl Iterator<Item = usize>) -> usize {
    let mut best: Option<(usize, f64)> = None;
    for at in positions {
        let v = x[at];
        if best.is_none_or(|(_, b)| v > b || v.is_nan()) {
            best = Some((at, v));
        }
    }
    best.expect("`infer` refuses windows that see nothing").0
}

/// Calls `f(plane, output, input)` with the position of each window's maximum within its plane.
pub(crate) fn for_each_max(x: &[f64], w: &Windows, mut f: impl FnMut(usize, usize, usize)) {
    for (plane, x) in x.chunks_exact(w.inputs().max(1)).enumerate() {
        for out in 0..w.outputs() {
            f(plane, out, arg_max(x, w.positions(out)));
        }
    }
}

impl Primitive for MaxPool {
    const NAME: &'static str = "max_pool";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        infer_choice(Self::NAME, x, &self.axes)
    }

    fn keep(&self) -> Keep {
        Keep::input(0)
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        Grad::one(run(MaxPoolGrad { axes: self.axes.clone() }, &[g.x(0), g.dy()]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let w = pooling::checked(Self::NAME, x[0].shape(), &self.axes);
        let (x, mut max) = (widened(x[0]), vec![0.0; y.shape().numel()]);
        let (n_in, n_out) = (w.inputs(), w.outputs());
        for_each_max(&x, &w, |plane, out, at| max[plane * n_out + out] = x[plane * n_in + at]);
        narrow_into(&max, y);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let w = pooling::checked(Self::NAME, x[0].shape(), &self.axes);
        let (Some((size, window)), Some(x)) = (w.kernel2d(), single::operand(x[0])) else { return false };
        single::result(y, |y| pool::max_pool2d(&x, size, window, y))
    }

    fn plane_rank(&self) -> Option<usize> {
        Some(self.axes.len())
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: x[0].numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        pooling::samples(|axes, _| MaxPool { axes }, |x, _| vec![Draw::distinct(x)])
    }
}

/// The options of `max_pool1d`, `max_pool2d` and `max_pool3d`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct MaxPoolOptions {
    /// Steps from one window to the next; the size of a window if `None`.
    pub stride: Option<PerAxis>,
    /// Positions of −∞ added on both sides; at most half of the window.
    pub padding: PerAxis,
    /// Steps from one element of a window to the next.
    pub dilation: PerAxis,
    /// Whether a last window may hang over the end.
    pub ceil_mode: bool,
}

impl Default for MaxPoolOptions {
    fn default() -> Self {
        Self { stride: None, padding: 0.into(), dilation: 1.into(), ceil_mode: false }
    }
}

impl MaxPoolOptions {
    #[track_caller]
    fn axes(&self, x: &Tensor, kernel: PerAxis, n: usize) -> PoolAxes {
        let MaxPoolOptions { stride, padding, dilation, ceil_mode } = self.clone();
        let op = ["max_pool1d", "max_pool2d", "max_pool3d"][n - 1];
        or_fail(Sliding { stride, padding, dilation, ceil_mode }.axes(op, x.shape(), kernel, n))
    }
}

impl Tensor {
    /// The largest element of each window of the last axis. self: (batch, channels, length) or
    /// (channels, length).
    #[track_caller]
    pub fn max_pool1d(&self, kernel_size: impl Into<PerAxis>, options: &MaxPoolOptions) -> Tensor {
        run(MaxPool { axes: options.axes(self, kernel_size.into(), 1) }, &[self])
    }

    /// The largest element of each window of the last two axes. self: (batch, channels, height, width)
    /// or without batch.
    ///
    /// ```
    /// use thalweg_tensor::{MaxPoolOptions, Tensor};
    /// let x = Tensor::from([[[1.0f32, 2.0, 3.0, 4.0], [8.0, 7.0, 6.0, 5.0]]]);
    /// assert_eq!(x.max_pool2d(2, &MaxPoolOptions::default()).to_vec::<f32>(), [8.0, 6.0]);
    /// ```
    #[track_caller]
    pub fn max_pool2d(&self, kernel_size: impl Into<PerAxis>, options: &MaxPoolOptions) -> Tensor {
        run(MaxPool { axes: options.axes(self, kernel_size.into(), 2) }, &[self])
    }

    /// The largest element of each window of the last three axes. self: (batch, channels, depth,
    /// height, width) or without batch.
    #[track_caller]
    pub fn max_pool3d(&self, kernel_size: impl Into<PerAxis>, options: &MaxPoolOptions) -> Tensor {
        run(MaxPool { axes: options.axes(self, kernel_size.into(), 3) }, &[self])
    }

    /// Where [`Tensor::max_pool1d`] finds each maximum along the last axis.
    #[track_caller]
    pub fn max_pool1d_indices(&self, kernel_size: impl Into<PerAxis>, options: &MaxPoolOptions) -> Tensor {
        run(MaxPoolIndices { axes: options.axes(self, kernel_size.into(), 1) }, &[self])
    }

    /// Where [`Tensor::max_pool2d`] finds each maximum, as positions in the flattened plane.
    #[track_caller]
    pub fn max_pool2d_indices(&self, kernel_size: impl Into<PerAxis>, options: &MaxPoolOptions) -> Tensor {
        run(MaxPoolIndices { axes: options.axes(self, kernel_size.into(), 2) }, &[self])
    }

    /// Where [`Tensor::max_pool3d`] finds each maximum, as positions in the flattened volume.
    #[track_caller]
    pub fn max_pool3d_indices(&self, kernel_size: impl Into<PerAxis>, options: &MaxPoolOptions) -> Tensor {
        run(MaxPoolIndices { axes: options.axes(self, kernel_size.into(), 3) }, &[self])
    }

    /// The largest element of each of `output_size` even windows of the last axis.
    #[track_caller]
    pub fn adaptive_max_pool1d(&self, output_size: impl Into<PerAxis>) -> Tensor {
        let axes = or_fail(pooling::adaptive("adaptive_max_pool1d", self.shape(), output_size.into(), 1));
        run(MaxPool { axes }, &[self])
    }

    /// The largest element of each of `output_size` even windows of the last two axes.
    #[track_caller]
    pub fn adaptive_max_pool2d(&self, output_size: impl Into<PerAxis>) -> Tensor {
        let axes = or_fail(pooling::adaptive("adaptive_max_pool2d", self.shape(), output_size.into(), 2));
        run(MaxPool { axes }, &[self])
    }

    /// The largest element of each of `output_size` even windows of the last three axes.
    #[track_caller]
    pub fn adaptive_max_pool3d(&self, output_size: impl Into<PerAxis>) -> Tensor {
        let axes = or_fail(pooling::adaptive("adaptive_max_pool3d", self.shape(), output_size.into(), 3));
        run(MaxPool { axes }, &[self])
    }
}
