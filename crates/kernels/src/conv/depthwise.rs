//! Groups of one input channel: too little work per group for a matrix product, so each output line is
//! the sum of its taps' lines.

use super::Conv;
use crate::simd::vector::F32s;
use crate::simd::{Body, dispatch};
use crate::stream::split::par_chunks_mut;

/// Multiply-adds per task.
const GRAIN: usize = 64 << 10;

fn planes_per_task(c: &Conv) -> usize {
    (GRAIN / (c.outputs() * c.taps()).max(1)).max(1)
}

/// Each output plane sees one input plane.
pub(super) fn forward(c: &Conv, x: &[f32], w: &[f32], y: &mut [f32]) {
    let (n_in, n_out, n_taps) = (c.inputs(), c.outputs(), c.taps());
    par_chunks_mut(y, planes_per_task(c) * n_out, |start, y| {
        for (plane, y) in (start / n_out..).zip(y.chunks_exact_mut(n_out)) {
            let from = plane / c.out_channels;
            let channel = plane % (c.groups * c.out_channels);
            let (x, w) = (&x[from * n_in..][..n_in], &w[channel * n_taps..][..n_taps]);
            y.fill(0.0);
            dispatch(Plane { c, x, w, y, way: Way::Forward });
        }
    });
}

/// Each input plane is seen by `out_channels` output planes.
pub(super) fn input_gradient(c: &Conv, dy: &[f32], w: &[f32], dx: &mut [f32]) {
    let (n_in, n_out, n_taps) = (c.inputs(), c.outputs(), c.taps());
    if n_in == 0 {
        return;
    }
    par_chunks_mut(dx, planes_per_task(c).div_ceil(c.out_channels) * n_in, |start, dx| {
        for (plane, dx) in (start / n_in..).zip(dx.chunks_exact_mut(n_in)) {
            dx.fill(0.0);
            for co in 0..c.out_channels {
                let from = plane * c.out_channels + co;
                let channel = from % (c.groups * c.out_channels);
                let (dy, w) = (&dy[from * n_out..][..n_out], &w[channel * n_taps..][..n_taps]);
                dispatch(Plane { c, x: dy, w, y: dx, way: Way::Back });
            }
        }
    });
}

/// Each channel's taps are dot products over the whole batch; lines add up in f64.
pub(super) fn weight_gradient(c: &Conv, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    let (n_in, n_out, n_taps) = (c.inputs(), c.outputs(), c.taps());
    let channels = c.groups * c.out_channels;
    par_chunks_mut(dw, planes_per_task(c).div_ceil(c.batch) * n_taps, |start, dw| {
        let mut sums = vec![0.0f64; n_taps];
        for (channel, dw) in (start / n_taps..).zip(dw.chunks_exact_mut(n_taps)) {
            sums.fill(0.0);
            for n in 0..c.batch {
                let plane = n * channels + channel;
                let x = &x[plane / c.out_channels * n_in..][..n_in];
                dispatch(Dots { c, x, dy: &dy[plane * n_out..][..n_out], sums: &mut sums });
            }
            dw.iter_mut().zip(&sums).for_each(|(dw, s)| *dw = *s as f32);
        }
    });
}

/// Calls `$body` with each output line, its tap, and where along the last axis they meet:
/// `(tap, output line, input line, lo, hi, first)`.
macro_rules! for_each_line {
    ($c:expr, |$tap:ident, $line:ident, $at:ident, $lo:ident, $hi:ident, $first:ident| $body:block) => {
        let [d, h, w] = &$c.axes;
        for $line in 0..d.output * h.output {
            for kd in 0..d.kernel {
                for kh in 0..h.kernel {
                    let Some((at_d, at_h)) = d.meet($line / h.output, kd).zip(h.meet($line % h.output, kh))
                    else {
                        continue;
                    };
                    let $at = at_d * h.input + at_h;
                    for kw in 0..w.kernel {
                        let ($lo, $hi) = w.reached(kw);
                        if $lo == $hi {
                            continue;
                        }
                        let $tap = (kd * h.kernel + kh) * w.kernel + kw;
                        let $first = $lo * w.stride + kw * w.dilation - w.padding;
                        $body
                    }
                }
            }
        }
    };
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Forward,
    Back,
}

/// One plane: y += w over x, or its transpose.
struct Plane<'a> {
    c: &'a Conv,
    x: &'a [f32],
    w: &'a [f32],
    y: &'a mut [f32],
    way: Way,
}

impl Body for Plane<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        let Plane { c, x, w, y, way } = self;
        let (n_in, n_out, stride) = (c.axes[2].input, c.axes[2].output, c.axes[2].stride);
        for_each_line!(c, |tap, line, at, lo, hi, first| {
            let s = w[tap];
            match way {
                Way::Forward => {
                    let y = &mut y[line * n_out..][lo..hi];
                    let x = &x[at * n_in..][first..n_in];
                    if stride == 1 {
                        y.iter_mut().zip(&x[..hi - lo]).for_each(|(y, x)| *y += s * x);
                    } else {
                        y.iter_mut().zip(x.iter().step_by(stride)).for_each(|(y, x)| *y += s * x);
                    }
                }
                Way::Back => {
                    let x = &x[line * n_out..][lo..hi];
                    let y = &mut y[at * n_in..][first..n_in];
                    if stride == 1 {
                        y[..hi - lo].iter_mut().zip(x).for_each(|(y, x)| *y += s * x);
                    } else {
                        y.iter_mut().step_by(stride).zip(x).for_each(|(y, x)| *y += s * x);
                    }
                }
            }
        });
    }
}

/// Adds, for each tap, the dot product of the gradient with what the tap sees.
struct Dots<'a> {
    c: &'a Conv,
    x: &'a [f32],
    dy: &'a [f32],
    sums: &'a mut [f64],
}

impl Body for Dots<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        let Dots { c, x, dy, sums } = self;
        let (n_in, n_out, stride) = (c.axes[2].input, c.axes[2].output, c.axes[2].stride);
        for_each_line!(c, |tap, line, at, lo, hi, first| {
            let (dy, x) = (&dy[line * n_out..][lo..hi], &x[at * n_in..][first..n_in]);
            let dot = if stride == 1 {
                dot(dy, &x[..hi - lo])
            } else {
                dy.iter().zip(x.iter().step_by(stride)).map(|(a, b)| a * b).sum::<f32>()
            };
            sums[tap] += f64::from(dot);
        });
    }
}

/// Sixteen partial sums, so that the compiler can use a register of them.
#[inline(always)]
fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = [0.0f32; 16];
    let (a16, b16) = (a.chunks_exact(16), b.chunks_exact(16));
    let rest: f32 = a16.remainder().iter().zip(b16.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a16.zip(b16) {
        for i in 0..16 {
            lanes[i] += a[i] * b[i];
        }
    }
    lanes.iter().sum::<f32>() + rest
}
