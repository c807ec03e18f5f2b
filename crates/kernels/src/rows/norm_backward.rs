//! Gradients of layer and RMS normalisation.
//!
//! x, dy, dx: (rows, cols); weight, d_weight, d_bias: (cols); mean, rstd: (rows), as the forward pass wrote
//! them. The gradients of weight and bias sum over rows: blocks of rows, cut by the number of rows alone,
//! each sum in order, and then the blocks in order.

use crate::rows::norm::{Norm, rows_of};
use crate::rows::reduce::{Reduction, at, reduce, reduction};
use crate::scratch::Scratch;
use crate::simd::vector::F32s;
use crate::simd::{Body, dispatch};
use crate::stream::arithmetic::add_assign;
use crate::stream::split::{SharedMut, par_chunks};

/// Where the gradients go; what is absent is not computed.
pub struct NormGrads<'a> {
    /// (rows, cols)
    pub dx: &'a mut [f32],
    /// (cols)
    pub d_weight: Option<&'a mut [f32]>,
    /// (cols)
    pub d_bias: Option<&'a mut [f32]>,
}

/// With g = dy · weight and u = (x − mean) · rstd: dx = rstd (g − Σg/cols − u Σgu/cols), d_weight = Σ dy u and
/// d_bias = Σ dy over rows. Overwrites all three.
pub fn layer_norm_backward(
    x: &[f32],
    dy: &[f32],
    cols: usize,
    weight: Option<&[f32]>,
    mean: &[f32],
    rstd: &[f32],
    grads: NormGrads<'_>,
) {
    backward(Norm::Layer, x, dy, cols, weight, mean, rstd, grads);
}

/// As [`layer_norm_backward`] with mean 0 and without the term Σg.
pub fn rms_norm_backward(
    x: &[f32],
    dy: &[f32],
    cols: usize,
    weight: Option<&[f32]>,
    rstd: &[f32],
    grads: NormGrads<'_>,
) {
    let mean = Scratch::filled(rstd.len(), 0.0);
    backward(Norm::Rms, x, dy, cols, weight, &mean, rstd, grads);
}

#[allow(clippy::too_many_arguments, reason = "the operands of the formula, checked in one place")]
fn backward(
    norm: Norm,
    x: &[f32],
    dy: &[f32],
    cols: usize,
    weight: Option<&[f32]>,
    mean: &[f32],
    rstd: &[f32],
    grads: NormGrads<'_>,
) {
    let NormGrads { dx, d_weight, d_bias } = grads;
    let rows = rows_of(x.len(), cols);
    assert!(x.len() == dy.len() && x.len() == dx.len(), "norm_backward: slices differ in length");
    assert!(mean.len() == rows && rstd.len() == rows, "norm_backward: mean or rstd is not (rows)");
    let columns = [weight, d_weight.as_deref(), d_bias.as_deref()];
    assert!(
        columns.iter().flatten().all(|c| c.len() == cols),
        "norm_backward: a column vector is not (cols)"
    );
    let ones = weight.is_none().then(|| Scratch::filled(cols, 1.0));
    let weight = weight.or(ones.as_deref()).expect("ones stand for an absent weight");

    // At most 64 blocks, so that their sums stay small beside the matrix.
    let grain = rows.div_ceil(64).max(16);
    // (blocks, 2, cols): d_weight and d_bias of each block.
    let mut partial = Scratch::filled(rows.div_ceil(grain) * 2 * cols, 0.0);
    let (dx, shared) = (SharedMut::new(dx), SharedMut::new(&mut partial));
    par_chunks(rows, grain, |r| {
        let block = r.start / grain;
        let part = r.start * cols..r.end * cols;
        // SAFETY: `par_chunks` gives every row, and so every block, to exactly one call.
        let (dx, sums) =
            unsafe { (dx.range(part.clone()), shared.range(block * 2 * cols..(block + 1) * 2 * cols)) };
        let (x, dy) = (&x[part.clone()], &dy[part]);
        dispatch(Block { norm, x, dy, cols, weight, mean: &mean[r.clone()], rstd: &rstd[r], dx, sums });
    });
    for (which, out) in [d_weight, d_bias].into_iter().enumerate() {
        let Some(out) = out else { continue };
        out.fill(0.0);
        partial.chunks_exact(cols.max(1)).skip(which).step_by(2).for_each(|block| add_assign(out, block));
    }
}

reduction!(Product { x: &'a [f32], y: &'a [f32] } of x, 0.0,
    // SAFETY: the bounds are `step`'s own; `y` is as long as `x`.
    |s, acc, i, n| unsafe { at::<V>(s.x, i, n, 0.0).mul_add(at(s.y, i, n, 0.0), acc) },
    |a, b| a + b);

// Σ g u; padded terms are 0, as dy is.
reduction!(Projection { x: &'a [f32], dy: &'a [f32], w: &'a [f32], mean: f32, rstd: f32 } of x, 0.0,
    |s, acc, i, n| {
        // SAFETY: the bounds are `step`'s own; all three slices are equally long.
        let (x, dy, w) = unsafe { (at::<V>(s.x, i, n, 0.0), at::<V>(s.dy, i, n, 0.0), at::<V>(s.w, i, n, 0.0)) };
        let u = (x - acc.splat(s.mean)) * acc.splat(s.rstd);
        (dy * w).mul_add(u, acc)
    },
    |a, b| a + b);

struct Block<'a> {
    norm: Norm,
    x: &'a [f32],
    dy: &'a [f32],
    cols: usize,
    weight: &'a [f32],
    mean: &'a [f32],
    rstd: &'a [f32],
    dx: &'a mut [f32],
    /// (2, cols), zero at the start.
    sums: &'a mut [f32],
}

impl Body for Block<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, v: V) {
        let Block { cols, weight: w, .. } = self;
        let n = cols as f32;
        let (d_weight, d_bias) = self.sums.split_at_mut(cols);
        let (d_weight, d_bias) = (d_weight.as_mut_ptr(), d_bias.as_mut_ptr());
        for row in 0..self.mean.len() {
            let part = row * cols..(row + 1) * cols;
            let (x, dy) = (&self.x[part.clone()], &self.dy[part.clone()]);
            let dx = self.dx[part].as_mut_ptr();
            let (mean, rstd) = (self.mean[row], self.rstd[row]);
            let shift = match self.norm {
                Norm::Layer => reduce(v, Product { x: dy, y: w }) / n,
                Norm::Rms => 0.0,
            };
            let slope = v.splat(reduce(v, Projection { x, dy, w, mean, rstd }) / n);
            let (mean, rstd, shift) = (v.splat(mean), v.splat(rstd), v.splat(shift));
            each_vector!(V, cols, |i, k| {
                // SAFETY: `i + k <= cols`, the length of every row and sum here; the sums are this call's.
                unsafe {
                    let (dy, u) = (at::<V>(dy, i, k, 0.0), (at::<V>(x, i, k, 0.0) - mean) * rstd);
                    let g = dy * at(w, i, k, 0.0);
                    (rstd * (g - shift - u * slope)).store_n(dx.add(i), k);
                    dy.mul_add(u, V::load_n(d_weight.add(i), k, 0.0)).store_n(d_weight.add(i), k);
                    (dy + V::load_n(d_bias.add(i), k, 0.0)).store_n(d_bias.add(i), k);
                }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{NormGrads, layer_norm_backward, rms_norm_backward};
    use crate::rows::norm::{layer_norm, rms_norm};
    use crate::rows::testing::{close, same_on_threads, values};

    /// dx, d_weight and d_bias in f64, one after another.
    fn twin(x: &[f32], dy: &[f32], cols: usize, w: &[f32], centred: bool) -> Vec<f64> {
        let (n, mut dx, mut sums) = (cols as f64, vec![], vec![0.0; 2 * cols]);
        for (x, dy) in x.chunks_exact(cols).zip(dy.chunks_exact(cols)) {
            let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            let mean = if centred { x.iter().sum::<f64>() / n } else { 0.0 };
            let rstd = 1.0 / (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + 1e-2).sqrt();
            let u: Vec<f64> = x.iter().map(|x| (x - mean) * rstd).collect();
            let g: Vec<f64> = dy.iter().zip(w).map(|(d, w)| f64::from(*d) * f64::from(*w)).collect();
            let shift = if centred { g.iter().sum::<f64>() / n } else { 0.0 };
            let slope = g.iter().zip(&u).map(|(g, u)| g * u).sum::<f64>() / n;
            dx.extend(g.iter().zip(&u).map(|(g, u)| rstd * (g - shift - u * slope)));
            for (j, d) in dy.iter().enumerate() {
                sums[j] += f64::from(*d) * u[j];
                sums[cols + j] += f64::from(*d);
            }
        }
        dx.extend(sums);
        dx
    }

    #[test]
    fn gradients_agree_with_f64_at_every_width() {
        for cols in (1..=70).chain([768, 5001]) {
            for rows in [1, 17, 100] {
                let (x, dy, w) = (values(rows * cols, 1), values(rows * cols, 2), values(cols, 3));
                for centred in [true, false] {
                    let got = same_on_threads(|| {
                        let (mut y, mut mean, mut rstd) =
                            (vec![0.0; x.len()], vec![0.0; rows], vec![0.0; rows]);
                        let mut out = vec![9.0; x.len() + 2 * cols];
                        let (dx, sums) = out.split_at_mut(x.len());
                        let (dw, db) = sums.split_at_mut(cols);
                        let grads = NormGrads { dx, d_weight: Some(dw), d_bias: Some(db) };
                        if centred {
                            layer_norm(&x, cols, Some(&w), None, 1e-2, &mut y, Some((&mut mean, &mut rstd)));
                            layer_norm_backward(&x, &dy, cols, Some(&w), &mean, &rstd, grads);
                        } else {
                            rms_norm(&x, cols, Some(&w), 1e-2, &mut y, Some(&mut rstd));
                            rms_norm_backward(&x, &dy, cols, Some(&w), &rstd, grads);
                        }
                        out
                    });
                    close(&got, &twin(&x, &dy, cols, &w, centred), 1e-4);
                }
            }
        }
    }
}
