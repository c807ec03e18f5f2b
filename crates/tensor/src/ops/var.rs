//! `var`: the mean squared distance from the mean over some axes, which disappear; divided by the
//! number of elements less a correction, and NaN when nothing is left to divide by.

use smallvec::SmallVec;
use thalweg_core::{View, ViewMut};
use thalweg_kernels::rows::reduce::mean_and_variance;

use crate::apply::run;
use crate::args::Axes;
use crate::error::{OpError, or_fail};
use crate::meta::{Meta, arity, require_float};
use crate::ops::fast_reduction::{Rows, WIDTH, by_columns, fast_middle};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::reduction;
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// The variance over some axes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Var {
    /// The axes that disappear, in ascending order.
    pub axes: SmallVec<[usize; 4]>,
    /// How much the divisor is below the number of elements: 0 for the variance of a population, 1 for
    /// the unbiased estimate from a sample.
    pub correction: usize,
}

impl Var {
    fn divisor(&self, n: usize) -> f64 {
        n.saturating_sub(self.correction) as f64
    }
}

impl Primitive for Var {
    const NAME: &'static str = "var";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        require_float(Self::NAME, x)?;
        reduction::infer(Self::NAME, x, &self.axes)
    }

    fn keep(&self) -> Keep {
        Keep::input(0)
    }

    /// dx = 2 dy (x − mean) / divisor.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let x = g.x(0);
        let scale = 2.0 / self.divisor(reduction::count(x.shape(), &self.axes));
        let dy = (g.dy() * scale).reshape(reduction::kept(x.shape(), &self.axes));
        Grad::one((x - x.mean_keepdim(&self.axes[..])) * dy)
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        reduction::by_rows(x[0], &self.axes, y, |row: &[f64]| {
            let mean = row.iter().sum::<f64>() / row.len() as f64;
            row.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / self.divisor(row.len())
        });
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        fast_middle(x[0], &self.axes, y, |x, sizes, y| {
            let n = sizes[1];
            if sizes[2] > 1 {
                return by_columns(x, sizes, y, |rows, y| column_variance(rows, n, self.divisor(n), y));
            }
            mean_and_variance(x, n, &mut vec![0.0; y.len()], y);
            let scale = (n as f64 / self.divisor(n)) as f32;
            if scale != 1.0 {
                y.iter_mut().for_each(|y| *y *= scale);
            }
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 4 * x[0].numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        let distance = &x[0] - x[0].mean_keepdim(&self.axes[..]);
        let n = reduction::count(x[0].shape(), &self.axes);
        Some((&distance * &distance).sum(&self.axes[..]) / self.divisor(n))
    }

    fn samples() -> Vec<Sample> {
        let mut samples = reduction::samples(|axes| Var { axes, correction: 0 }, Draw::any);
        samples.extend(reduction::samples(|axes| Var { axes, correction: 1 }, Draw::any).into_iter().take(3));
        samples
    }
}

/// The variance of each column of n rows, in two passes in f64.
fn column_variance(rows: Rows<'_>, n: usize, divisor: f64, y: &mut [f32]) {
    let (mut mean, mut squares) = ([0.0f64; WIDTH], [0.0f64; WIDTH]);
    for row in rows.iter() {
        mean.iter_mut().zip(row).for_each(|(m, &x)| *m += f64::from(x));
    }
    mean.iter_mut().for_each(|m| *m /= n as f64);
    for row in rows.iter() {
        for ((s, m), &x) in squares.iter_mut().zip(&mean).zip(row) {
            *s += (f64::from(x) - m) * (f64::from(x) - m);
        }
    }
    y.iter_mut().zip(squares).for_each(|(y, s)| *y = (s / divisor) as f32);
}

impl Tensor {
    /// The variance over some axes, `()` for all. `correction` is 1 for the unbiased estimate that
    /// PyTorch computes by default, 0 for the plain mean of squares.
    #[track_caller]
    pub fn var(&self, axes: impl Into<Axes>, correction: usize) -> Tensor {
        let axes = or_fail(axes.into().resolve(Var::NAME, self.shape()));
        run(Var { axes, correction }, &[&self.as_float()])
    }

    /// [`Tensor::var`], with the axes kept at size 1.
    #[track_caller]
    pub fn var_keepdim(&self, axes: impl Into<Axes>, correction: usize) -> Tensor {
        let axes = or_fail(axes.into().resolve(Var::NAME, self.shape()));
        let shape = reduction::kept(self.shape(), &axes);
        run(Var { axes, correction }, &[&self.as_float()]).reshape(shape)
    }

    /// The square root of [`Tensor::var`].
    #[track_caller]
    pub fn std(&self, axes: impl Into<Axes>, correction: usize) -> Tensor {
        self.var(axes, correction).sqrt()
    }

    /// [`Tensor::std`], with the axes kept at size 1.
    #[track_caller]
    pub fn std_keepdim(&self, axes: impl Into<Axes>, correction: usize) -> Tensor {
        self.var_keepdim(axes, correction).sqrt()
    }
}
