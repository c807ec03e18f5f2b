//! Maximum and average pooling over planes: x: (planes, height, width), y: (planes, out height, out width).
//!
//! For NCHW, planes = N · C. Padding is −∞ for the maximum and 0 for the average. Planes run in parallel;
//! the gradient of a plane is summed in the order of its outputs.

use std::ops::Range;

use crate::gemm::{Ready, tell};
use crate::simd::vector::F32s;
use crate::simd::{Body, dispatch};
use crate::stream::arithmetic::Number;
use crate::stream::split::{SharedMut, par_chunks, par_chunks_mut};

/// The window of a pooling: each `[vertical, horizontal]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Elements of the window.
    pub kernel: [usize; 2],
    /// Steps from one window to the next.
    pub stride: [usize; 2],
    /// Rows and columns added on every side.
    pub padding: [usize; 2],
    /// Steps from one element of the window to the next.
    pub dilation: [usize; 2],
}

/// The usual window: 2 × 2, side by side.
const PAIRS: Window = Window { kernel: [2, 2], stride: [2, 2], padding: [0, 0], dilation: [1, 1] };

/// By what an average is divided.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Divisor {
    /// The size of the window, padding included.
    Window,
    /// The number of elements inside of the plane.
    Inside,
}

impl Window {
    /// The output's height and width for an input's.
    ///
    /// # Panics
    /// When a stride, dilation or kernel is 0, or the window is larger than the padded plane.
    pub fn output(&self, size: [usize; 2]) -> [usize; 2] {
        std::array::from_fn(|d| {
            let Window { kernel, stride, padding, dilation } = *self;
            assert!(
                kernel[d] > 0 && stride[d] > 0 && dilation[d] > 0,
                "pool: a window with a zero: {self:?}"
            );
            let (reach, padded) = (dilation[d] * (kernel[d] - 1) + 1, size[d] + 2 * padding[d]);
            assert!(reach <= padded, "pool: {self:?} is larger than the padded plane {size:?}");
            (padded - reach) / stride[d] + 1
        })
    }

    /// The elements of window `out` along dimension `d` that lie inside of a plane.
    #[inline(always)]
    fn inside(&self, d: usize, out: usize, size: usize) -> impl Iterator<Item = usize> + Clone + use<> {
        let (start, pad, step) = (out * self.stride[d], self.padding[d], self.dilation[d]);
        let first = pad.saturating_sub(start).div_ceil(step);
        let last = (size + pad).saturating_sub(start).div_ceil(step).min(self.kernel[d]);
        (first..last).map(move |k| start + k * step - pad)
    }
}

/// y = max of x over each window; NaN if it holds one.
pub fn max_pool2d(x: &[f32], size: [usize; 2], window: Window, y: &mut [f32]) {
    let out = window.output(size);
    per_plane([size, out], x, y, |x, y| {
        if window == PAIRS {
            dispatch(Pairs { x, width: size[1], y, out });
            return;
        }
        for (at, y) in y.iter_mut().enumerate() {
            *y = arg_max(x, size, window, [at / out[1], at % out[1]]).1;
        }
    });
}

/// dx = the sum of dy over the windows of which x is the maximum: the first of equals, the last NaN.
pub fn max_pool2d_backward(x: &[f32], size: [usize; 2], window: Window, dy: &[f32], dx: &mut [f32]) {
    max_pool2d_backward_then(x, size, window, dy, dx, None);
}

/// [`max_pool2d_backward`] that calls `ready` with some planes of dx at a time, once they are final.
pub fn max_pool2d_backward_then(
    x: &[f32],
    size: [usize; 2],
    window: Window,
    dy: &[f32],
    dx: &mut [f32],
    ready: Ready,
) {
    let out = window.output(size);
    let [n_in, n_out] = [size[0] * size[1], out[0] * out[1]];
    assert_eq!(x.len(), dx.len(), "max_pool2d_backward: input and gradient differ in length");
    assert!(x.len() * n_out == dy.len() * n_in, "max_pool2d_backward: slices do not hold the same planes");
    par_chunks_mut(dx, planes_per_task(n_in) * n_in, |start, part| {
        for (p, dx) in (start / n_in.max(1)..).zip(part.chunks_exact_mut(n_in.max(1))) {
            let x = &x[p * n_in..(p + 1) * n_in];
            if window == PAIRS {
                dispatch(PairsBackward { x, width: size[1], dy: &dy[p * n_out..(p + 1) * n_out], out, dx });
                continue;
            }
            dx.fill(0.0);
            for (at, dy) in dy[p * n_out..(p + 1) * n_out].iter().enumerate() {
                if let (Some(best), _) = arg_max(x, size, window, [at / out[1], at % out[1]]) {
                    dx[best] += dy;
                }
            }
        }
        tell(ready, start, part);
    });
}

/// y = mean of x over each window.
pub fn avg_pool2d(x: &[f32], size: [usize; 2], window: Window, divisor: Divisor, y: &mut [f32]) {
    let out = window.output(size);
    per_plane([size, out], x, y, |x, y| {
        for (at, y) in y.iter_mut().enumerate() {
            let (rows, cols) =
                (window.inside(0, at / out[1], size[0]), window.inside(1, at % out[1], size[1]));
            let (mut sum, mut count) = (0.0, 0);
            for r in rows {
                for c in cols.clone() {
                    sum += x[r * size[1] + c];
                    count += 1;
                }
            }
            *y = sum / divide_by(divisor, window, count);
        }
    });
}

/// dx = the sum of dy / divisor over the windows that hold x.
pub fn avg_pool2d_backward(dy: &[f32], size: [usize; 2], window: Window, divisor: Divisor, dx: &mut [f32]) {
    let out = window.output(size);
    per_plane([out, size], dy, dx, |dy, dx| {
        dx.fill(0.0);
        for (at, dy) in dy.iter().enumerate() {
            let (rows, cols) =
                (window.inside(0, at / out[1], size[0]), window.inside(1, at % out[1], size[1]));
            let count = rows.clone().count() * cols.clone().count();
            let share = dy / divide_by(divisor, window, count);
            for r in rows {
                cols.clone().for_each(|c| dx[r * size[1] + c] += share);
            }
        }
    });
}

fn divide_by(divisor: Divisor, window: Window, inside: usize) -> f32 {
    match divisor {
        Divisor::Window => (window.kernel[0] * window.kernel[1]) as f32,
        Divisor::Inside => inside as f32,
    }
}

fn planes_per_task(plane: usize) -> usize {
    (16 * 1024 / plane.max(1)).max(1)
}

/// Calls `f(x, y)` with each plane of both, whose sizes are given, on all threads.
fn per_plane([from, to]: [[usize; 2]; 2], x: &[f32], y: &mut [f32], f: impl Fn(&[f32], &mut [f32]) + Sync) {
    let (n_x, n_y) = (from[0] * from[1], to[0] * to[1]);
    let planes = x.len().checked_div(n_x).unwrap_or(y.len() / n_y.max(1));
    assert!(x.len() == planes * n_x && y.len() == planes * n_y, "pool: slices do not hold the same planes");
    let y = SharedMut::new(y);
    par_chunks(planes, planes_per_task(n_x.max(n_y)), |r: Range<usize>| {
        for p in r {
            // SAFETY: `par_chunks` gives every plane to exactly one call.
            f(&x[p * n_x..(p + 1) * n_x], unsafe { y.range(p * n_y..(p + 1) * n_y) });
        }
    });
}

/// Where the maximum of a window is, if any of the window is inside, and its value.
#[inline(always)]
fn arg_max(x: &[f32], size: [usize; 2], window: Window, [oy, ox]: [usize; 2]) -> (Option<usize>, f32) {
    let (mut best, mut value) = (None, f32::NEG_INFINITY);
    let cols = window.inside(1, ox, size[1]);
    for r in window.inside(0, oy, size[0]) {
        for c in cols.clone() {
            let v = x[r * size[1] + c];
            if best.is_none() || v > value || v.is_nan() {
                (best, value) = (Some(r * size[1] + c), v);
            }
        }
    }
    (best, value)
}

/// One plane with windows of 2 × 2 side by side. A last odd row or column is in no window.
struct Pairs<'a> {
    x: &'a [f32],
    width: usize,
    y: &'a mut [f32],
    out: [usize; 2],
}

impl Body for Pairs<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        let n = self.out[1];
        for (x, y) in self.x.chunks_exact(2 * self.width).zip(self.y.chunks_exact_mut(n)) {
            let (top, bottom) = x.split_at(self.width);
            in_blocks(n, |j, size| match size {
                32 => pairs::<32>(top, bottom, y, j),
                8 => pairs::<8>(top, bottom, y, j),
                4 => pairs::<4>(top, bottom, y, j),
                _ => pairs::<1>(top, bottom, y, j),
            });
        }
    }
}

/// The gradient of one plane with windows of 2 × 2.
struct PairsBackward<'a> {
    x: &'a [f32],
    width: usize,
    dy: &'a [f32],
    out: [usize; 2],
    dx: &'a mut [f32],
}

impl Body for PairsBackward<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, v: V) {
        let (width, n) = (self.width, self.out[1]);
        let (inside, outside) = self.dx.split_at_mut(2 * self.out[0] * width);
        outside.fill(0.0);
        let rows = self.x.chunks_exact(2 * width).zip(inside.chunks_exact_mut(2 * width));
        for ((x, dx), dy) in rows.zip(self.dy.chunks_exact(n)) {
            let ((top, bottom), (d_top, d_bottom)) = (x.split_at(width), dx.split_at_mut(width));
            for j in (0..n).step_by((V::LANES / 2).max(1)) {
                pairs_backward(v, [top, bottom], dy, [&mut *d_top, &mut *d_bottom], j);
            }
            d_top[2 * n..].fill(0.0);
            d_bottom[2 * n..].fill(0.0);
        }
    }
}

/// Calls `f(from, size)` for blocks of 32, 8, 4 and 1 of `n` windows. Rows are often short: in a loop over a fixed number of
/// windows all of them are in vectors.
#[inline(always)]
fn in_blocks(n: usize, mut f: impl FnMut(usize, usize)) {
    let mut j = 0;
    for size in [32, 8, 4, 1] {
        while j + size <= n {
            f(j, size);
            j += size;
        }
    }
}

/// The `N` windows from window `j` on.
#[inline(always)]
fn pairs<const N: usize>(top: &[f32], bottom: &[f32], y: &mut [f32], j: usize) {
    let (top, bottom, y) = (&top[2 * j..2 * (j + N)], &bottom[2 * j..2 * (j + N)], &mut y[j..j + N]);
    for i in 0..N {
        y[i] = top[2 * i].larger(bottom[2 * i]).larger(top[2 * i + 1].larger(bottom[2 * i + 1]));
    }
}

/// NaN in the even lanes of any vector.
static EVEN: [f32; 16] = {
    let mut lanes = [0.0; 16];
    let mut lane = 0;
    while lane < 16 {
        lanes[lane] = f32::NAN;
        lane += 2;
    }
    lanes
};

/// The gradient of a vector of windows from window `j` on, as many as there are. No branch but for NaN, since which of four
/// is largest cannot be foreseen; neighbours are compared by swapping them, since taking the columns apart costs more.
#[inline(always)]
fn pairs_backward<V: F32s>(
    v: V,
    [top, bottom]: [&[f32]; 2],
    dy: &[f32],
    [d_top, d_bottom]: [&mut [f32]; 2],
    j: usize,
) {
    let n = (V::LANES / 2).min(dy.len() - j);
    let (top, bottom, dy) = (&top[2 * j..], &bottom[2 * j..], &dy[j..]);
    let (d_top, d_bottom) = (&mut d_top[2 * j..], &mut d_bottom[2 * j..]);
    // SAFETY: each slice has the n windows, and `EVEN` as many lanes as any vector.
    unsafe {
        let (t, b) = (V::load_n(top.as_ptr(), 2 * n, 0.0), V::load_n(bottom.as_ptr(), 2 * n, 0.0));
        if V::LANES == 1 || V::any(t.is_nan()) || V::any(b.is_nan()) {
            return (0..n.max(1)).for_each(|i| pair_backward(top, bottom, dy[i], d_top, d_bottom, i));
        }
        let (t_other, b_other) = (t.swap_neighbours(), b.swap_neighbours());
        let largest = t.max(t_other).max(b.max(b_other));
        // What stands before a lane in its row of the window: nothing before an even one.
        let even = V::load(EVEN.as_ptr());
        let (t_before, b_before) = (t_other + even, b_other + even);
        let (dy, zero) = (V::load_n(dy.as_ptr(), n, 0.0).double_first_half(), v.splat(0.0));
        let in_top = t.eq(largest);
        let d_t = zero.or_where(in_top, dy).or_where(t_before.eq(largest), zero);
        let d_b = zero.or_where(b.eq(largest), dy).or_where(b_before.eq(largest), zero);
        let d_b = d_b.or_where(in_top, zero).or_where(t_other.eq(largest), zero);
        d_t.store_n(d_top.as_mut_ptr(), 2 * n);
        d_b.store_n(d_bottom.as_mut_ptr(), 2 * n);
    }
}

/// The gradient of window `i`.
#[inline(always)]
fn pair_backward(top: &[f32], bottom: &[f32], dy: f32, d_top: &mut [f32], d_bottom: &mut [f32], i: usize) {
    let [a, b, c, d] = [top[2 * i], top[2 * i + 1], bottom[2 * i], bottom[2 * i + 1]];
    // In the order of the window; the first of equals, the last NaN.
    let b_later = (b > a) | b.is_nan();
    let best = if b_later { b } else { a };
    let c_later = (c > best) | c.is_nan();
    let best = if c_later { c } else { best };
    let d_later = (d > best) | d.is_nan();
    d_top[2 * i] = if b_later | c_later | d_later { 0.0 } else { dy };
    d_top[2 * i + 1] = if b_later & !(c_later | d_later) { dy } else { 0.0 };
    d_bottom[2 * i] = if c_later & !d_later { dy } else { 0.0 };
    d_bottom[2 * i + 1] = if d_later { dy } else { 0.0 };
}

#[cfg(test)]
mod tests {
    use super::{Divisor, Window, avg_pool2d, avg_pool2d_backward, max_pool2d, max_pool2d_backward};
    use crate::rows::testing::{close, same_on_threads, values};

    /// Every (output, input) pair that a window joins, with input `None` in the padding.
    fn pairs(w: Window, size: [usize; 2]) -> Vec<(usize, Option<usize>)> {
        let out = w.output(size);
        let mut all = vec![];
        for o in 0..out[0] * out[1] {
            for k in 0..w.kernel[0] * w.kernel[1] {
                let at = [[o / out[1], k / w.kernel[1]], [o % out[1], k % w.kernel[1]]];
                let at: [isize; 2] = std::array::from_fn(|d| {
                    (at[d][0] * w.stride[d] + at[d][1] * w.dilation[d]) as isize - w.padding[d] as isize
                });
                let inside = (0..2).all(|d| at[d] >= 0 && at[d] < size[d] as isize);
                all.push((o, inside.then(|| at[0] as usize * size[1] + at[1] as usize)));
            }
        }
        all
    }

    fn windows() -> impl Iterator<Item = (Window, [usize; 2])> {
        let w = |k, s, p, d| Window { kernel: k, stride: s, padding: p, dilation: d };
        let fixed = [
            (w([3, 3], [2, 2], [1, 1], [1, 1]), [9, 12]),
            (w([3, 2], [1, 2], [1, 0], [2, 1]), [8, 7]),
            (w([2, 2], [2, 2], [1, 1], [1, 1]), [5, 6]),
            (w([7, 5], [7, 5], [0, 0], [1, 1]), [7, 5]),
        ];
        let pairs = (2..=70).map(move |n| (w([2, 2], [2, 2], [0, 0], [1, 1]), [n % 9 + 2, n]));
        fixed.into_iter().chain(pairs)
    }

    #[test]
    fn pooling_agrees_with_f64() {
        for (w, size) in windows() {
            let (planes, n, out) = (7, size[0] * size[1], w.output(size));
            let m = out[0] * out[1];
            let (x, dy) = (values(planes * n, 1), values(planes * m, 2));
            let run = |len: usize, f: &dyn Fn(&mut [f32])| {
                same_on_threads(|| {
                    let mut y = vec![9.0; len];
                    f(&mut y);
                    y
                })
            };
            let (mut max, mut arg) = (vec![f64::NEG_INFINITY; planes * m], vec![0; planes * m]);
            let (mut mean, mut d_mean, mut d_max) =
                (vec![0.0; planes * m], vec![0.0; planes * n], vec![0.0; planes * n]);
            let size_of = (w.kernel[0] * w.kernel[1]) as f64;
            for p in 0..planes {
                for (o, i) in pairs(w, size) {
                    let Some(i) = i else { continue };
                    let (o, i) = (p * m + o, p * n + i);
                    if f64::from(x[i]) > max[o] {
                        (max[o], arg[o]) = (f64::from(x[i]), i);
                    }
                    mean[o] += f64::from(x[i]) / size_of;
                    d_mean[i] += f64::from(dy[o]) / size_of;
                }
            }
            arg.iter().zip(&dy).for_each(|(i, d)| d_max[*i] += f64::from(*d));
            close(&run(planes * m, &|y| max_pool2d(&x, size, w, y)), &max, 0.0);
            close(&run(planes * n, &|dx| max_pool2d_backward(&x, size, w, &dy, dx)), &d_max, 1e-6);
            close(&run(planes * m, &|y| avg_pool2d(&x, size, w, Divisor::Window, y)), &mean, 1e-6);
            close(
                &run(planes * n, &|dx| avg_pool2d_backward(&dy, size, w, Divisor::Window, dx)),
                &d_mean,
                1e-6,
            );
        }
    }

    #[test]
    fn gradients_of_equals_and_of_nan_go_to_one_place() {
        // Few different values, so that windows have equals in every position, and NaN in some.
        let size = [6, 46];
        let x: Vec<f32> = values(6 * 46, 3)
            .iter()
            .map(|x| match (x * 8.0) as i32 {
                7 => f32::NAN,
                i => (i / 3) as f32,
            })
            .collect();
        let w = Window { kernel: [2, 2], stride: [2, 2], padding: [0, 0], dilation: [1, 1] };
        let dy: Vec<f32> = (1..=3 * 23).map(|i| i as f32).collect();
        let mut want = vec![0.0; x.len()];
        for (o, dy) in dy.iter().enumerate() {
            want[super::arg_max(&x, size, w, [o / 23, o % 23]).0.expect("a window without padding")] = *dy;
        }
        let mut dx = vec![9.0; x.len()];
        max_pool2d_backward(&x, size, w, &dy, &mut dx);
        assert_eq!(dx, want);
    }

    #[test]
    fn nan_wins_and_padding_does_not_count() {
        let w = Window { kernel: [2, 2], stride: [2, 2], padding: [0, 0], dilation: [1, 1] };
        for at in 0..4 {
            let mut x = [1.0; 4];
            x[at] = f32::NAN;
            let (mut y, mut dx) = ([0.0], [0.0; 4]);
            max_pool2d(&x, [2, 2], w, &mut y);
            max_pool2d_backward(&x, [2, 2], w, &[1.0], &mut dx);
            assert!(y[0].is_nan() && dx[at] == 1.0);
        }
        let padded = Window { padding: [1, 1], ..w };
        let mut y = [0.0; 4];
        max_pool2d(&[-1.0; 4], [2, 2], padded, &mut y);
        assert_eq!(y, [-1.0; 4]);
        avg_pool2d(&[-1.0; 4], [2, 2], padded, Divisor::Inside, &mut y);
        assert_eq!(y, [-1.0; 4]);
        avg_pool2d(&[-1.0; 4], [2, 2], padded, Divisor::Window, &mut y);
        assert_eq!(y, [-0.25; 4]);
    }
}
