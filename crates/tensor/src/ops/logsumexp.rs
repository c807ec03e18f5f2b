//! `logsumexp`: y = log Σ eˣ over some axes, which disappear. Of no elements it is −∞.

use smallvec::{SmallVec, smallvec};
use thalweg_core::{View, ViewMut};
use thalweg_kernels::math::exp;
use thalweg_kernels::rows::softmax::log_sum_exp;

use crate::apply::run;
use crate::args::Axes;
use crate::error::{OpError, or_fail};
use crate::meta::{Meta, arity, require_float};
use crate::ops::fast_reduction::{Rows, WIDTH, by_columns, fast_middle};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::reduction;
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// log Σ eˣ over some axes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Logsumexp {
    /// The axes that disappear, in ascending order.
    pub axes: SmallVec<[usize; 4]>,
}

impl Primitive for Logsumexp {
    const NAME: &'static str = "logsumexp";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        require_float(Self::NAME, x)?;
        reduction::infer(Self::NAME, x, &self.axes)
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::OUTPUT)
    }

    /// dx = dy · exp(x − y): the softmax. It is NaN where y is infinite, as there is no softmax then.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let shape = reduction::kept(g.x(0).shape(), &self.axes);
        let softmax = (g.x(0) - g.y().reshape(&shape)).exp();
        Grad::one(softmax * g.dy().reshape(&shape))
    }

    /// Shifting by the maximum keeps `exp` in range. A maximum that is not finite (some NaN, some +∞,
    /// all −∞, or no elements) is already the answer.
    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        reduction::by_rows(x[0], &self.axes, y, |row: &[f64]| {
            let max = row.iter().fold(f64::NEG_INFINITY, |m, &v| if v > m || v.is_nan() { v } else { m });
            match max.is_finite() {
                true => max + row.iter().map(|v| (v - max).exp()).sum::<f64>().ln(),
                false => max,
            }
        });
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        fast_middle(x[0], &self.axes, y, |x, sizes, y| match sizes[2] {
            0 | 1 => log_sum_exp(x, sizes[1], y),
            _ => by_columns(x, sizes, y, column_log_sum_exp),
        })
    }

    fn on_rows(&self, x: &[&Meta]) -> Option<(usize, Self)> {
        Some((reduction::row(&x[0].shape, &self.axes)?, Logsumexp { axes: smallvec![1] }))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 10 * x[0].numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        let (x, axes) = (&x[0], &self.axes[..]);
        if reduction::count(x.shape(), axes) == 0 {
            return Some(x.sum(axes).full_like(f64::NEG_INFINITY));
        }
        // The shift cancels out of the value, so no gradient need flow through it.
        let shift = x.amax_keepdim(axes).stop_gradient();
        let shift = shift.abs().lt(f64::INFINITY).where_(&shift, 0.0);
        let sum = (x - &shift).exp().sum(axes);
        Some(sum.log() + shift.reshape(sum.shape()))
    }

    fn samples() -> Vec<Sample> {
        let mut samples = reduction::samples(|axes| Logsumexp { axes }, Draw::any);
        samples.push(Sample::new(Logsumexp { axes: smallvec![1] }, [Draw::float([3, 5], 90.0, 100.0)]));
        samples
    }
}

/// log Σ eˣ of each column.
fn column_log_sum_exp(rows: Rows<'_>, y: &mut [f32]) {
    let n = y.len();
    y.fill(f32::NEG_INFINITY);
    for row in rows.iter() {
        y.iter_mut().zip(row).for_each(|(max, &x)| *max = if x > *max || x.is_nan() { x } else { *max });
    }
    let (mut shifted, mut exps, mut sums) = ([0.0f32; WIDTH], [0.0f32; WIDTH], [0.0f64; WIDTH]);
    for row in rows.iter() {
        shifted.iter_mut().zip(row).zip(&*y).for_each(|((s, &x), &max)| *s = x - max);
        exp(&shifted[..n], &mut exps[..n]);
        sums.iter_mut().zip(&exps[..n]).for_each(|(sum, &e)| *sum += f64::from(e));
    }
    for (y, sum) in y.iter_mut().zip(sums).filter(|(y, _)| y.is_finite()) {
        *y = (f64::from(*y) + sum.ln()) as f32;
    }
}

impl Tensor {
    /// log Σ eˣ over some axes, `()` for all, without overflow.
    #[track_caller]
    pub fn logsumexp(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = or_fail(axes.into().resolve(Logsumexp::NAME, self.shape()));
        run(Logsumexp { axes }, &[&self.as_float()])
    }

    /// [`Tensor::logsumexp`], with the axes kept at size 1.
    #[track_caller]
    pub fn logsumexp_keepdim(&self, axes: impl Into<Axes>) -> Tensor {
        let axes = or_fail(axes.into().resolve(Logsumexp::NAME, self.shape()));
        let shape = reduction::kept(self.shape(), &axes);
        run(Logsumexp { axes }, &[&self.as_float()]).reshape(shape)
    }
}
