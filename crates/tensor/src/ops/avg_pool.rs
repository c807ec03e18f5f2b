//! `avg_pool`: the mean of each window; padding counts as zeros, or not at all.

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
use crate::ops::{AvgPoolGrad, single};
use crate::tensor::Tensor;

/// By what the sum of a window is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum Divisor {
    /// Its elements, padding included.
    Padded,
    /// Its elements that are in no padding.
    Inside,
    /// A number.
    Fixed(usize),
}

impl Divisor {
    /// For one window.
    pub(crate) fn of(self, w: &Windows, out: usize) -> f64 {
        match self {
            Divisor::Padded => w.padded_len(out) as f64,
            Divisor::Inside => w.positions(out).count() as f64,
            Divisor::Fixed(n) => n as f64,
        }
    }

    /// As the kernel for planes wants it.
    pub(crate) fn kernel(self) -> Option<pool::Divisor> {
        match self {
            Divisor::Padded => Some(pool::Divisor::Window),
            Divisor::Inside => Some(pool::Divisor::Inside),
            Divisor::Fixed(_) => None,
        }
    }
}

/// The mean of each window.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct AvgPool {
    /// The windows along the last axes.
    pub axes: Box<[PoolAxis]>,
    /// By what sums are divided.
    pub divisor: Divisor,
}

impl Primitive for AvgPool {
    const NAME: &'static str = "avg_pool";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        require_float(Self::NAME, x)?;
        Ok(x.with_shape(pooling::windows(Self::NAME, &x.shape, &self.axes)?.0))
    }

    fn keep(&self) -> Keep {
        Keep::METAS
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let shape = &g.meta(0).shape;
        let input = shape[shape.rank() - self.axes.len()..].into();
        Grad::one(run(AvgPoolGrad { axes: self.axes.clone(), divisor: self.divisor, input }, &[g.dy()]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let w = pooling::checked(Self::NAME, x[0].shape(), &self.axes);
        let (x, mut means) = (widened(x[0]), vec![0.0; y.shape().numel()]);
        let planes = x.chunks_exact(w.inputs().max(1)).zip(means.chunks_exact_mut(w.outputs().max(1)));
        for (x, means) in planes {
            for (out, mean) in means.iter_mut().enumerate() {
                let sum: f64 = w.positions(out).map(|at| x[at]).sum();
                *mean = sum / self.divisor.of(&w, out);
            }
        }
        narrow_into(&means, y);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let w = pooling::checked(Self::NAME, x[0].shape(), &self.axes);
        let (Some((size, window)), Some(divisor)) = (w.kernel2d(), self.divisor.kernel()) else {
            return false;
        };
        let Some(x) = single::operand(x[0]) else { return false };
        single::result(y, |y| pool::avg_pool2d(&x, size, window, divisor, y))
    }

    fn plane_rank(&self) -> Option<usize> {
        Some(self.axes.len())
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: x[0].numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        [Divisor::Padded, Divisor::Inside, Divisor::Fixed(3)]
            .into_iter()
            .flat_map(|divisor| {
                pooling::samples(|axes, _| AvgPool { axes, divisor }, |x, _| vec![Draw::any(x)])
            })
            .collect()
    }
}

/// The options of `avg_pool1d`, `avg_pool2d` and `avg_pool3d`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct AvgPoolOptions {
    /// Steps from one window to the next; the size of a window if `None`.
    pub stride: Option<PerAxis>,
    /// Zeros added on both sides; at most half of the window.
    pub padding: PerAxis,
    /// Whether a last window may hang over the end.
    pub ceil_mode: bool,
    /// By what sums are divided.
    pub divisor: Divisor,
}

impl Default for AvgPoolOptions {
    fn default() -> Self {
        Self { stride: None, padding: 0.into(), ceil_mode: false, divisor: Divisor::Padded }
    }
}

impl AvgPoolOptions {
    #[track_caller]
    fn op(&self, x: &Tensor, kernel: PerAxis, n: usize) -> AvgPool {
        let AvgPoolOptions { stride, padding, ceil_mode, divisor } = self.clone();
        let op = ["avg_pool1d", "avg_pool2d", "avg_pool3d"][n - 1];
        let windows = Sliding { stride, padding, dilation: 1.into(), ceil_mode };
        if divisor == Divisor::Fixed(0) {
            let (name, value, shape) = ("divisor", "0".to_owned(), x.shape().clone());
            crate::error::fail(OpError::Argument { op, name, value, shape, need: "must be at least 1" });
        }
        AvgPool { axes: or_fail(windows.axes(op, x.shape(), kernel, n)), divisor }
    }
}

impl Tensor {
    /// The mean of each window of the last axis. self: (batch, channels, length) or (channels, length).
    #[track_caller]
    pub fn avg_pool1d(&self, kernel_size: impl Into<PerAxis>, options: &AvgPoolOptions) -> Tensor {
        run(options.op(self, kernel_size.into(), 1), &[self])
    }

    /// The mean of each window of the last two axes. self: (batch, channels, height, width) or without
    /// batch.
    ///
    /// ```
    /// use thalweg_tensor::{AvgPoolOptions, Tensor};
    /// let x = Tensor::from([[[1.0f32, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]]]);
    /// assert_eq!(x.avg_pool2d(2, &AvgPoolOptions::default()).to_vec::<f32>(), [3.5, 5.5]);
    /// ```
    #[track_caller]
    pub fn avg_pool2d(&self, kernel_size: impl Into<PerAxis>, options: &AvgPoolOptions) -> Tensor {
        run(options.op(self, kernel_size.into(), 2), &[self])
    }

    /// The mean of each window of the last three axes. self: (batch, channels, depth, height, width) or
    /// without batch.
    #[track_caller]
    pub fn avg_pool3d(&self, kernel_size: impl Into<PerAxis>, options: &AvgPoolOptions) -> Tensor {
        run(options.op(self, kernel_size.into(), 3), &[self])
    }

    /// The mean of each of `output_size` even windows of the last axis.
    #[track_caller]
    pub fn adaptive_avg_pool1d(&self, output_size: impl Into<PerAxis>) -> Tensor {
        adaptive(self, "adaptive_avg_pool1d", output_size.into(), 1)
    }

    /// The mean of each of `output_size` even windows of the last two axes.
    #[track_caller]
    pub fn adaptive_avg_pool2d(&self, output_size: impl Into<PerAxis>) -> Tensor {
        adaptive(self, "adaptive_avg_pool2d", output_size.into(), 2)
    }

    /// The mean of each of `output_size` even windows of the last three axes.
    #[track_caller]
    pub fn adaptive_avg_pool3d(&self, output_size: impl Into<PerAxis>) -> Tensor {
        adaptive(self, "adaptive_avg_pool3d", output_size.into(), 3)
    }
}

#[track_caller]
fn adaptive(x: &Tensor, op: &'static str, output: PerAxis, n: usize) -> Tensor {
    let axes: PoolAxes = or_fail(pooling::adaptive(op, x.shape(), output, n));
    run(AvgPool { axes, divisor: Divisor::Inside }, &[x])
}
