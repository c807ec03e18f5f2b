//! Batch normalisation: each channel by its mean and variance over the batch and all further axes.
//!
//! x, dy, y, dx: (batch, channels, length), their sizes given as an array; vectors: (channels), a weight and
//! a bias 1 and 0 when absent; sums: (2, channels). With u = (x − mean) / √(variance + eps).
//!
//! Statistics are made in pieces, cut by the sizes alone: of every plane, or, where planes are narrow, of blocks
//! of rows by columns. The pieces are joined in order, in f64.

use std::ops::Range;

use crate::rows::par_rows;
use crate::rows::reduce::{Deviations, Reduction, Squares, Sum, at, reduce, reduction};
use crate::scratch::Scratch;
use crate::simd::vector::F32s;
use crate::simd::{Body, dispatch};
use crate::stream::split::{GRAIN, SharedMut, par_chunks_mut};

/// Number, mean and summed squared deviations of some values.
#[derive(Clone, Copy, Default)]
pub struct Moments {
    n: f64,
    /// The mean.
    pub mean: f64,
    squares: f64,
}

impl Moments {
    /// The mean squared deviation from the mean.
    pub fn variance(&self) -> f64 {
        self.squares / self.n
    }

    /// Those of both lots of values (Chan, Golub and LeVeque).
    #[inline(always)]
    fn join(self, other: Self) -> Self {
        let n = self.n + other.n;
        if n == 0.0 {
            return self;
        }
        let (apart, share) = (other.mean - self.mean, other.n / n);
        let squares = self.squares + other.squares + apart * apart * self.n * share;
        Self { n, mean: self.mean + apart * share, squares }
    }
}

/// The moments of each channel.
pub fn moments(x: &[f32], sizes: [usize; 3]) -> Scratch<Moments> {
    let [_, channels, length] = sizes;
    let plane = |r: Range<usize>, _| dispatch(PlaneMoments { x: &x[r] });
    let block = |r: Range<usize>, out: &mut [Moments]| dispatch(BlockMoments { x: &x[r], length, out });
    let mut all = Scratch::filled(channels, Moments::default());
    for piece in pieces(x.len(), sizes, plane, block).chunks_exact(channels.max(1)) {
        all.iter_mut().zip(piece).for_each(|(all, piece)| *all = all.join(*piece));
    }
    all
}

/// y = u · weight + bias.
pub fn batch_norm(
    x: &[f32],
    sizes: [usize; 3],
    weight: Option<&[f32]>,
    bias: Option<&[f32]>,
    eps: f64,
    y: &mut [f32],
) {
    let of = |c: usize, m: &Moments| {
        let scale = weight.map_or(1.0, |w| f64::from(w[c])) / (m.variance() + eps).sqrt();
        Affine::new(m.mean, scale, 0.0, bias.map_or(0.0, |b| f64::from(b[c])))
    };
    let moments = moments(x, sizes);
    let channels = Scratch::each(moments.len(), |c| of(c, &moments[c]));
    affine(x, x, sizes, &channels, y);
}

/// sums = (Σ dy u, Σ dy) of each channel: the gradients of weight and bias.
pub fn batch_norm_sums(x: &[f32], dy: &[f32], sizes: [usize; 3], eps: f64, sums: &mut [f32]) {
    let [_, channels, length] = sizes;
    assert_eq!((x.len(), sums.len()), (dy.len(), 2 * channels), "batch_norm_sums: lengths do not fit");
    let moments = moments(x, sizes);
    let plane = |r: Range<usize>, c: usize| {
        dispatch(PlaneSums { x: &x[r.clone()], dy: &dy[r], mean: moments[c].mean })
    };
    let block = |r: Range<usize>, out: &mut [[f64; 2]]| {
        dispatch(BlockSums { x: &x[r.clone()], dy: &dy[r], length, moments: &moments, out });
    };
    let mut all = Scratch::filled(channels, [0.0; 2]);
    for piece in pieces(x.len(), sizes, plane, block).chunks_exact(channels.max(1)) {
        all.iter_mut().zip(piece).for_each(|(all, p)| *all = [all[0] + p[0], all[1] + p[1]]);
    }
    for (c, [along, sum]) in all.iter().enumerate() {
        sums[c] = (along / (moments[c].variance() + eps).sqrt()) as f32;
        sums[channels + c] = *sum as f32;
    }
}

/// dx = weight (dy − sums₁ / n − u sums₀ / n) / √(variance + eps), n the values of a channel.
pub fn batch_norm_backward(
    x: &[f32],
    dy: &[f32],
    sizes: [usize; 3],
    sums: &[f32],
    weight: Option<&[f32]>,
    eps: f64,
    dx: &mut [f32],
) {
    let [batch, channels, length] = sizes;
    assert_eq!((x.len(), sums.len()), (dy.len(), 2 * channels), "batch_norm_backward: lengths do not fit");
    let n = (batch * length) as f64;
    let of = |c: usize, m: &Moments| {
        let scale = 1.0 / (m.variance() + eps).sqrt();
        let by = weight.map_or(1.0, |w| f64::from(w[c])) * scale;
        let [along, sum] = [c, channels + c].map(|i| f64::from(sums[i]) / n);
        Affine::new(m.mean, -by * scale * along, by, -by * sum)
    };
    let moments = moments(x, sizes);
    let channels = Scratch::each(moments.len(), |c| of(c, &moments[c]));
    affine(x, dy, sizes, &channels, dx);
}

/// Planes below this length are taken by columns: a vector would hardly be filled by one.
const NARROW: usize = 16;

/// What is known of each channel in each piece: (pieces, channels). `plane` gets the elements of a plane and its
/// channel, `block` those of a few whole rows.
fn pieces<T: Copy + Default + Send>(
    len: usize,
    [batch, channels, length]: [usize; 3],
    plane: impl Fn(Range<usize>, usize) -> T + Sync,
    block: impl Fn(Range<usize>, &mut [T]) + Sync,
) -> Scratch<T> {
    assert_eq!(len, batch * channels * length, "batch_norm: input is not (batch, channels, length)");
    if len == 0 {
        return Scratch::filled(0, T::default());
    }
    if length >= NARROW {
        let mut out = Scratch::filled(batch * channels, T::default());
        par_chunks_mut(&mut out, (GRAIN / 4 / length).max(1), |start, out| {
            for (i, out) in (start..).zip(out) {
                *out = plane(i * length..(i + 1) * length, i % channels);
            }
        });
        return out;
    }
    let width = channels * length;
    let rows = (GRAIN / width).max(16);
    let mut out = Scratch::filled(batch.div_ceil(rows) * channels, T::default());
    par_chunks_mut(&mut out, channels, |start, out| {
        let first = start / channels * rows;
        block(first * width..batch.min(first + rows) * width, out);
    });
    out
}

struct PlaneMoments<'a> {
    x: &'a [f32],
}

impl Body for PlaneMoments<'_> {
    type Out = Moments;
    #[inline(always)]
    fn run<V: F32s>(self, v: V) -> Moments {
        let (x, n) = (self.x, self.x.len() as f64);
        let centre = reduce(v, Sum { x }) / n as f32;
        // What rounding took from the mean.
        let rest = f64::from(reduce(v, Deviations { x, centre })) / n;
        let squares = f64::from(reduce(v, Squares { x, centre })) - rest * rest * n;
        Moments { n, mean: f64::from(centre) + rest, squares: squares.max(0.0) }
    }
}

struct BlockMoments<'a> {
    x: &'a [f32],
    length: usize,
    out: &'a mut [Moments],
}

impl Body for BlockMoments<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        let width = self.out.len() * self.length;
        let n = (self.x.len() / width) as f64;
        let [mut mean, mut squares] = [(); 2].map(|()| Scratch::filled(width, 0.0));
        for row in self.x.chunks_exact(width) {
            mean.iter_mut().zip(row).for_each(|(m, x)| *m += f64::from(*x));
        }
        mean.iter_mut().for_each(|m| *m /= n);
        for row in self.x.chunks_exact(width) {
            for ((s, m), x) in squares.iter_mut().zip(&*mean).zip(row) {
                let apart = f64::from(*x) - m;
                *s += apart * apart;
            }
        }
        for (i, (&mean, &squares)) in mean.iter().zip(&*squares).enumerate() {
            let out = &mut self.out[i / self.length];
            *out = out.join(Moments { n, mean, squares });
        }
    }
}

// Σ dy (x − centre); padded terms are 0, as dy is.
reduction!(Along { x: &'a [f32], dy: &'a [f32], centre: f32 } of x, 0.0,
    |s, acc, i, n| {
        // SAFETY: the bounds are `step`'s own; `dy` is as long as `x`.
        let (x, dy) = unsafe { (at::<V>(s.x, i, n, 0.0), at::<V>(s.dy, i, n, 0.0)) };
        dy.mul_add(x - acc.splat(s.centre), acc)
    },
    |a, b| a + b);

struct PlaneSums<'a> {
    x: &'a [f32],
    dy: &'a [f32],
    mean: f64,
}

impl Body for PlaneSums<'_> {
    /// Σ dy (x − mean), Σ dy.
    type Out = [f64; 2];
    #[inline(always)]
    fn run<V: F32s>(self, v: V) -> [f64; 2] {
        let centre = self.mean as f32;
        let sum = f64::from(reduce(v, Sum { x: self.dy }));
        let along = f64::from(reduce(v, Along { x: self.x, dy: self.dy, centre }));
        [along - (self.mean - f64::from(centre)) * sum, sum]
    }
}

struct BlockSums<'a> {
    x: &'a [f32],
    dy: &'a [f32],
    length: usize,
    moments: &'a [Moments],
    out: &'a mut [[f64; 2]],
}

impl Body for BlockSums<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        let width = self.out.len() * self.length;
        let mean = Scratch::each(width, |i| self.moments[i / self.length].mean);
        let [mut along, mut sum] = [(); 2].map(|()| Scratch::filled(width, 0.0));
        for (x, dy) in self.x.chunks_exact(width).zip(self.dy.chunks_exact(width)) {
            let sums = along.iter_mut().zip(&mut *sum).zip(&*mean);
            for (((a, s), m), (x, dy)) in sums.zip(x.iter().zip(dy)) {
                *a += f64::from(*dy) * (f64::from(*x) - m);
                *s += f64::from(*dy);
            }
        }
        for (i, (a, s)) in along.iter().zip(&*sum).enumerate() {
            let out = &mut self.out[i / self.length];
            *out = [out[0] + a, out[1] + s];
        }
    }
}

/// out = (x − centre) · slope + other · by + shift.
#[derive(Clone, Copy)]
struct Affine {
    centre: f32,
    /// What rounding took from the centre.
    rest: f32,
    slope: f32,
    by: f32,
    shift: f32,
}

impl Affine {
    fn new(centre: f64, slope: f64, by: f64, shift: f64) -> Self {
        let rest = (centre - f64::from(centre as f32)) as f32;
        Self { centre: centre as f32, rest, slope: slope as f32, by: by as f32, shift: shift as f32 }
    }
}

/// Applies each channel's map.
fn affine(x: &[f32], other: &[f32], sizes: [usize; 3], channels: &[Affine], out: &mut [f32]) {
    let [batch, _, length] = sizes;
    assert_eq!(x.len(), out.len(), "batch_norm: input and output differ in length");
    let out = SharedMut::new(out);
    let narrow = length < NARROW;
    let (rows, cols) =
        if narrow { (batch, channels.len() * length) } else { (batch * channels.len(), length) };
    // One map per element of a narrow row.
    let wide = Scratch::each(if narrow { cols } else { 0 }, |i| channels[i / length]);
    par_rows(rows, cols, |r| {
        // SAFETY: `par_rows` gives every row to exactly one call.
        let out = unsafe { out.range(r.start * cols..r.end * cols) };
        for (row, out) in r.zip(out.chunks_exact_mut(cols)) {
            let part = row * cols..(row + 1) * cols;
            let (x, other) = (&x[part.clone()], &other[part]);
            match narrow {
                true => dispatch(EachElement { x, other, maps: &wide, out }),
                false => dispatch(OnePlane { x, other, map: channels[row % channels.len()], out }),
            }
        }
    });
}

struct EachElement<'a> {
    x: &'a [f32],
    other: &'a [f32],
    maps: &'a [Affine],
    out: &'a mut [f32],
}

impl Body for EachElement<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        for (((x, other), m), out) in self.x.iter().zip(self.other).zip(self.maps).zip(self.out) {
            *out = (x - m.centre - m.rest).mul_add(m.slope, other.mul_add(m.by, m.shift));
        }
    }
}

struct OnePlane<'a> {
    x: &'a [f32],
    other: &'a [f32],
    map: Affine,
    out: &'a mut [f32],
}

impl Body for OnePlane<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, v: V) {
        let m = self.map;
        let [centre, rest, slope] = [m.centre, m.rest, m.slope].map(|p| v.splat(p));
        let (by, shift) = (v.splat(m.by), v.splat(m.shift));
        let p = self.out.as_mut_ptr();
        each_vector!(V, self.x.len(), |i, k| {
            // SAFETY: `i + k` is at most the length of all three.
            unsafe {
                let (x, other) = (at::<V>(self.x, i, k, 0.0), at::<V>(self.other, i, k, 0.0));
                (x - centre - rest).mul_add(slope, other.mul_add(by, shift)).store_n(p.add(i), k);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{batch_norm, batch_norm_backward, batch_norm_sums, moments};
    use crate::rows::testing::{close, same_on_threads, values};

    const EPS: f64 = 1e-3;

    /// Mean and 1 / √(variance + eps) of a channel, by the definition in f64.
    fn statistics(x: &[f32], [_, channels, length]: [usize; 3], c: usize) -> (f64, f64) {
        let of_channel = |(i, x): (usize, &f32)| (i / length % channels == c).then_some(f64::from(*x));
        let x: Vec<f64> = x.iter().enumerate().filter_map(of_channel).collect();
        let n = x.len() as f64;
        let mean = x.iter().sum::<f64>() / n;
        (mean, 1.0 / (x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n + EPS).sqrt())
    }

    #[test]
    fn batch_norm_and_its_gradients_agree_with_f64() {
        let mut shapes = vec![[300, 5, 1], [7000, 12, 1], [5, 3, 70_001], [40, 16, 49], [3, 1, 4096]];
        shapes.extend((1..40).map(|n| [4, 3, n]));
        shapes.extend((1..40).map(|n| [n, 2, 5]));
        for sizes @ [batch, channels, length] in shapes {
            let n = batch * channels * length;
            let x: Vec<f32> = values(n, 1).iter().map(|x| x + 50.0).collect();
            let (dy, w, b) = (values(n, 2), values(channels, 3), values(channels, 4));
            let count = (batch * length) as f64;
            let (mut y, mut sums, mut dx) = (vec![0.0; n], vec![0.0; 2 * channels], vec![0.0; n]);
            let stats: Vec<(f64, f64)> = (0..channels).map(|c| statistics(&x, sizes, c)).collect();
            let unit = |i: usize| {
                (f64::from(x[i]) - stats[i / length % channels].0) * stats[i / length % channels].1
            };
            for i in 0..n {
                let c = i / length % channels;
                y[i] = unit(i) * f64::from(w[c]) + f64::from(b[c]);
                sums[c] += f64::from(dy[i]) * unit(i);
                sums[channels + c] += f64::from(dy[i]);
            }
            for i in 0..n {
                let c = i / length % channels;
                let g = f64::from(dy[i]) - sums[channels + c] / count - unit(i) * sums[c] / count;
                dx[i] = f64::from(w[c]) * stats[c].1 * g;
            }
            let got = same_on_threads(|| {
                let mut out = vec![9.0; n];
                batch_norm(&x, sizes, Some(&w), Some(&b), EPS, &mut out);
                out
            });
            close(&got, &y, 1e-5);
            let got_sums = same_on_threads(|| {
                let mut out = vec![9.0; 2 * channels];
                batch_norm_sums(&x, &dy, sizes, EPS, &mut out);
                out
            });
            close(&got_sums, &sums, 1e-5 * count.sqrt());
            let got = same_on_threads(|| {
                let mut out = vec![9.0; n];
                batch_norm_backward(&x, &dy, sizes, &got_sums, Some(&w), EPS, &mut out);
                out
            });
            close(&got, &dx, 1e-4);
        }
    }

    #[test]
    fn a_large_mean_does_not_spoil_the_variance() {
        for sizes in [[200, 1, 1], [4, 1, 50]] {
            let x: Vec<f32> = values(200, 3).iter().map(|x| x + 4096.0).collect();
            let (mean, rstd) = statistics(&x, sizes, 0);
            let got = moments(&x, sizes)[0];
            assert!((got.mean - mean).abs() < 1e-6 * mean);
            assert!(((got.variance() + EPS) * rstd * rstd - 1.0).abs() < 1e-6);
        }
    }
}
