//! Layer normalisation and RMS normalisation over rows.
//!
//! x, y: (rows, cols); weight, bias: (cols), 1 and 0 when absent; mean, rstd: (rows).

use crate::rows::par_rows;
use crate::rows::reduce::{Deviations, Squares, Sum, at, reduce};
use crate::scratch::Scratch;
use crate::simd::vector::F32s;
use crate::simd::{Body, dispatch};
use crate::stream::split::SharedMut;

/// y = (x − mean) · rstd · weight + bias with rstd = 1 / √(variance + eps). Writes mean and rstd, which the
/// gradient needs, to `stats` when given.
pub fn layer_norm(
    x: &[f32],
    cols: usize,
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    eps: f32,
    y: &mut [f32],
    stats: Option<(&mut [f32], &mut [f32])>,
) {
    let (mean, rstd) = stats.unzip();
    forward(Norm::Layer, x, cols, [weight, bias], eps, y, [mean, rstd]);
}

/// y = x · rstd · weight with rstd = 1 / √(Σ x² / cols + eps). Writes rstd, which the gradient needs, when
/// given.
pub fn rms_norm(
    x: &[f32],
    cols: usize,
    weight: Option<&[f32]>,
    eps: f32,
    y: &mut [f32],
    rstd: Option<&mut [f32]>,
) {
    forward(Norm::Rms, x, cols, [weight, None], eps, y, [None, rstd]);
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Norm {
    Layer,
    Rms,
}

/// The number of rows of `cols` in `len` elements.
pub(super) fn rows_of(len: usize, cols: usize) -> usize {
    if len == 0 {
        return 0;
    }
    assert!(cols > 0 && len.is_multiple_of(cols), "norm: {len} elements are not rows of {cols}");
    len / cols
}

fn forward(
    norm: Norm,
    x: &[f32],
    cols: usize,
    affine: [Option<&[f32]>; 2],
    eps: f32,
    y: &mut [f32],
    stats: [Option<&mut [f32]>; 2],
) {
    assert_eq!(x.len(), y.len(), "norm: input and output differ in length");
    let rows = rows_of(x.len(), cols);
    assert!(affine.iter().flatten().all(|a| a.len() == cols), "norm: weight or bias is not (cols)");
    assert!(stats.iter().flatten().all(|s| s.len() == rows), "norm: mean or rstd is not (rows)");
    // An absent weight as ones: a product with 1 is exact, and one loop serves all cases.
    let [weight, bias] = affine;
    let [ones, zeros] = [(weight, 1.0), (bias, 0.0)]
        .map(|(given, value)| (given.is_none() && cols > USUAL).then(|| Scratch::filled(cols, value)));
    let weight = weight.or(ones.as_deref()).unwrap_or_else(|| &ONES[..cols]);
    let bias = bias.or(zeros.as_deref()).unwrap_or_else(|| &ZEROS[..cols]);
    let y = SharedMut::new(y);
    let [mean, rstd] = stats.map(|s| s.map(SharedMut::new));
    par_rows(rows, cols, |r| {
        let part = r.start * cols..r.end * cols;
        // SAFETY: `par_rows` gives every row to exactly one call.
        let (y, mean, rstd) = unsafe {
            let mean = mean.as_ref().map(|m| m.range(r.clone()));
            (y.range(part.clone()), mean, rstd.as_ref().map(|s| s.range(r.clone())))
        };
        dispatch(Forward { norm, x: &x[part], cols, weight, bias, eps, y, mean, rstd });
    });
}

/// Rows up to this width find what stands for an absent vector ready.
const USUAL: usize = 4096;
static ONES: [f32; USUAL] = [1.0; USUAL];
static ZEROS: [f32; USUAL] = [0.0; USUAL];

struct Forward<'a> {
    norm: Norm,
    x: &'a [f32],
    cols: usize,
    weight: &'a [f32],
    bias: &'a [f32],
    eps: f32,
    y: &'a mut [f32],
    mean: Option<&'a mut [f32]>,
    rstd: Option<&'a mut [f32]>,
}

impl Body for Forward<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(mut self, v: V) {
        let n = self.cols as f32;
        let rows = self.x.chunks_exact(self.cols).zip(self.y.chunks_exact_mut(self.cols));
        for (row, (x, y)) in rows.enumerate() {
            let mean = match self.norm {
                Norm::Layer => reduce(v, Sum { x }) / n,
                Norm::Rms => 0.0,
            };
            // What rounding took from the mean: all that is left of a row far from 0 hangs on it.
            let rest = match self.norm {
                Norm::Layer => reduce(v, Deviations { x, centre: mean }) / n,
                Norm::Rms => 0.0,
            };
            let variance = (reduce(v, Squares { x, centre: mean }) / n - rest * rest).max(0.0);
            let rstd = 1.0 / (variance + self.eps).sqrt();
            let (centre, rest, scale) = (v.splat(mean), v.splat(rest), v.splat(rstd));
            let p = y.as_mut_ptr();
            each_vector!(V, x.len(), |i, k| {
                // SAFETY: `i + k <= cols`, the length of all four.
                unsafe {
                    let unit = (at::<V>(x, i, k, 0.0) - centre - rest) * scale;
                    let y = unit.mul_add(at(self.weight, i, k, 0.0), at(self.bias, i, k, 0.0));
                    y.store_n(p.add(i), k);
                }
            });
            if let Some(out) = &mut self.mean {
                out[row] = mean;
            }
            if let Some(out) = &mut self.rstd {
                out[row] = rstd;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{layer_norm, rms_norm};
    use crate::rows::testing::{close, same_on_threads, values};

    #[test]
    fn norms_agree_with_f64_at_every_width() {
        for cols in (1..=70).chain([768, 1024, 5001, 70_001]) {
            let rows = if cols > 1000 { 2 } else { 40 };
            let x: Vec<f32> = values(rows * cols, 1).iter().map(|x| x + 3.0).collect();
            let (w, b) = (values(cols, 2), values(cols, 3));
            let (mut layer, mut rms) = (vec![], vec![]);
            for x in x.chunks_exact(cols) {
                let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
                let n = cols as f64;
                let mean = x.iter().sum::<f64>() / n;
                let rstd = 1.0 / (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + 1e-3).sqrt();
                let r = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / n + 1e-3).sqrt();
                let affine = w.iter().zip(&b).map(|(w, b)| (f64::from(*w), f64::from(*b)));
                layer.extend(x.iter().zip(affine.clone()).map(|(x, (w, b))| (x - mean) * rstd * w + b));
                rms.extend(x.iter().zip(affine).map(|(x, (w, _))| x * r * w));
            }
            let y = same_on_threads(|| {
                let mut y = vec![0.0; x.len()];
                layer_norm(&x, cols, Some(&w), Some(&b), 1e-3, &mut y, None);
                y
            });
            close(&y, &layer, 1e-5);
            let y = same_on_threads(|| {
                let mut y = vec![0.0; x.len()];
                rms_norm(&x, cols, Some(&w), 1e-3, &mut y, None);
                y
            });
            close(&y, &rms, 1e-5);
        }
    }

    #[test]
    fn a_row_far_from_zero_keeps_its_digits() {
        let x: Vec<f32> = values(24, 5).iter().map(|x| 1000.0 + x / 4.0).collect();
        let exact: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
        let mean = exact.iter().sum::<f64>() / 24.0;
        let rstd = 1.0 / (exact.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 24.0 + 1e-5).sqrt();
        let mut y = [0.0; 24];
        layer_norm(&x, 24, None, None, 1e-5, &mut y, None);
        close(&y, &exact.iter().map(|x| (x - mean) * rstd).collect::<Vec<_>>(), 2e-6);
    }

    #[test]
    fn absent_weight_and_bias_are_one_and_zero() {
        let x = values(6, 1);
        let (mut y, mut z, mut mean, mut rstd) = ([0.0; 6], [0.0; 6], [0.0; 2], [0.0; 2]);
        layer_norm(&x, 3, None, None, 1e-5, &mut y, Some((&mut mean, &mut rstd)));
        layer_norm(&x, 3, Some(&[1.0; 3]), Some(&[0.0; 3]), 1e-5, &mut z, None);
        assert_eq!(y, z);
        close(&mean, &[f64::from(x[0] + x[1] + x[2]) / 3.0, f64::from(x[3] + x[4] + x[5]) / 3.0], 1e-6);
        assert!(rstd.iter().all(|r| r.is_finite() && *r > 0.0));
    }
}
