//! Groups of one input channel: too little work per group for a matrix product.
//!
//! Each plane is first copied with its padding, and with the columns of each phase of the stride together:
//! then every tap of every window is a shift of whole lines, and sixteen outputs at a time stay in
//! registers while their taps are summed.

use super::destination::Destination;
use super::{Axis, Conv};
use crate::gemm::{Ready, tell};
use crate::scratch::Scratch;
use crate::simd::vector::F32s;
use crate::simd::{Body, dispatch};
use crate::stream::split::par_chunks_mut;

/// Outputs computed together.
const LANES: usize = 16;
/// Output channels whose weights one task sums.
const CHANNELS: usize = 8;
/// Multiply-adds per task.
const GRAIN: usize = 64 << 10;

/// y: each output plane sees one input plane.
pub(super) fn forward(c: &Conv, x: &[f32], w: &[f32], y: Destination<'_>, ready: Ready) {
    let (n_in, n_out, n_taps) = (c.inputs(), c.outputs(), c.taps());
    let channels = c.groups * c.out_channels;
    y.chunks(c.batch * c.image(), planes_per_task(c) * n_out, |start, y| {
        let mut padded = Padded::new(&c.axes);
        let mut holds = None;
        for (plane, y) in (start / n_out..).zip(y.chunks_exact_mut(n_out)) {
            let from = plane / c.out_channels;
            if holds != Some(from) {
                padded.fill(&x[from * n_in..][..n_in]);
                holds = Some(from);
            }
            let w = &w[plane % channels * n_taps..][..n_taps];
            dispatch(Windows { padded: &padded, w, y, add: false });
        }
        tell(ready, start, y);
    });
}

/// dx: each input plane is seen by `out_channels` output planes.
pub(super) fn input_gradient(c: &Conv, dy: &[f32], w: &[f32], dx: &mut [f32], ready: Ready) {
    let (n_in, n_out, n_taps) = (c.inputs(), c.outputs(), c.taps());
    if n_in == 0 {
        return;
    }
    let channels = c.groups * c.out_channels;
    let back = transposed(c);
    par_chunks_mut(dx, planes_per_task(c).div_ceil(c.out_channels) * n_in, |start, dx| {
        let mut padded = back.as_ref().map(Padded::new);
        let mut flipped = Scratch::filled(n_taps, 0.0);
        for (plane, dx) in (start / n_in..).zip(dx.chunks_exact_mut(n_in)) {
            if padded.is_none() {
                dx.fill(0.0);
            }
            for co in 0..c.out_channels {
                let from = plane * c.out_channels + co;
                let (dy, w) = (&dy[from * n_out..][..n_out], &w[from % channels * n_taps..][..n_taps]);
                match &mut padded {
                    Some(padded) => {
                        padded.fill(dy);
                        flipped.iter_mut().zip(w.iter().rev()).for_each(|(f, w)| *f = *w);
                        dispatch(Windows { padded, w: &flipped, y: dx, add: co > 0 });
                    }
                    None => dispatch(Scatter { c, dy, w, dx }),
                }
            }
        }
        tell(ready, start, dx);
    });
}

/// dw: each tap is a dot product over the whole batch; planes add up in f64.
pub(super) fn weight_gradient(c: &Conv, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    let (n_in, n_out, n_taps) = (c.inputs(), c.outputs(), c.taps());
    let channels = c.groups * c.out_channels;
    let (line, width) = (c.axes[2].output, c.axes[2].output.next_multiple_of(LANES));
    par_chunks_mut(dw, CHANNELS * n_taps, |start, dw| {
        let first = start / n_taps;
        let mut padded = Padded::new(&c.axes);
        let (mut sums, mut whole) =
            (Scratch::filled(dw.len(), 0.0f64), Scratch::filled(n_out / line * width, 0.0));
        for n in 0..c.batch {
            let mut holds = None;
            for (channel, sums) in (first..).zip(sums.chunks_exact_mut(n_taps)) {
                let plane = n * channels + channel;
                let from = plane / c.out_channels;
                if holds != Some(from) {
                    padded.fill(&x[from * n_in..][..n_in]);
                    holds = Some(from);
                }
                let dy = &dy[plane * n_out..][..n_out];
                for (to, dy) in whole.chunks_exact_mut(width).zip(dy.chunks_exact(line)) {
                    to[..line].copy_from_slice(dy);
                }
                dispatch(Dots { padded: &padded, dy: &whole, sums });
            }
        }
        dw.iter_mut().zip(&*sums).for_each(|(dw, s)| *dw = *s as f32);
    });
}

pub(super) fn planes_per_task(c: &Conv) -> usize {
    (GRAIN / (c.outputs() * c.taps()).max(1)).max(1)
}

/// At stride 1 the transpose is a convolution with the flipped kernel, unless the padding is wider than it.
fn transposed(c: &Conv) -> Option<[Axis; 3]> {
    let fits = |a: &Axis| a.stride == 1 && a.padding <= a.dilation * (a.kernel - 1);
    let back = |a: Axis| Axis {
        input: a.output,
        output: a.input,
        padding: a.dilation * (a.kernel - 1) - a.padding,
        ..a
    };
    c.axes.iter().all(fits).then(|| c.axes.map(back))
}

/// A plane with its padding: (depth, height, phases of the last stride, width of a phase).
struct Padded {
    axes: [Axis; 3],
    data: Scratch<f32>,
    /// Padded height.
    height: usize,
    /// Elements of one phase of a line, with room for a last block of lanes.
    phase: usize,
    /// Where each tap begins, from the start of its window's line.
    taps: Scratch<usize>,
}

impl Padded {
    fn new(axes: &[Axis; 3]) -> Self {
        let [d, h, w] = axes;
        let reach = |a: &Axis| (a.output - 1) * a.stride + (a.kernel - 1) * a.dilation + 1;
        let (depth, height) = (reach(d), reach(h));
        let phase = w.output.next_multiple_of(LANES) + (w.kernel - 1) * w.dilation / w.stride;
        let line = w.stride * phase;
        let tap = |t: usize| {
            let (kd, kh, kw) = (t / (h.kernel * w.kernel), t / w.kernel % h.kernel, t % w.kernel);
            let shift = kw * w.dilation;
            (kd * d.dilation * height + kh * h.dilation) * line + shift % w.stride * phase + shift / w.stride
        };
        let taps = Scratch::each(d.kernel * h.kernel * w.kernel, tap);
        Self { axes: *axes, data: Scratch::filled(depth * height * line, 0.0), height, phase, taps }
    }

    /// Copies a plane in. What is padding stays 0: it is the same for all planes.
    fn fill(&mut self, plane: &[f32]) {
        let [d, h, w] = self.axes;
        let line = w.stride * self.phase;
        for (i, from) in plane.chunks_exact(w.input.max(1)).enumerate() {
            let (at_d, at_h) = (i / h.input + d.padding, i % h.input + h.padding);
            let Some(to) = self.data.chunks_exact_mut(line).nth(at_d * self.height + at_h) else { continue };
            if at_h >= self.height {
                continue;
            }
            if w.stride == 1 {
                let n = from.len().min(self.phase.saturating_sub(w.padding));
                to[w.padding..][..n].copy_from_slice(&from[..n]);
                continue;
            }
            for (r, to) in to.chunks_exact_mut(self.phase).enumerate() {
                // The first element of this phase, and where it goes.
                let first = (r + w.stride - w.padding % w.stride) % w.stride;
                let at = (first + w.padding) / w.stride;
                let to = to.get_mut(at..).unwrap_or_default();
                let from = from.get(first..).unwrap_or_default();
                to.iter_mut().zip(from.iter().step_by(w.stride)).for_each(|(to, v)| *to = *v);
            }
        }
    }

    /// Where the windows of an output line begin.
    #[inline(always)]
    fn line(&self, line: usize) -> usize {
        let [d, h, w] = &self.axes;
        let (od, oh) = (line / h.output, line % h.output);
        (od * d.stride * self.height + oh * h.stride) * w.stride * self.phase
    }
}

/// y = the windows of a plane times a kernel, or y += that.
struct Windows<'a> {
    padded: &'a Padded,
    w: &'a [f32],
    y: &'a mut [f32],
    add: bool,
}

impl Body for Windows<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        let Windows { padded, w, y, add } = self;
        for (line, y) in y.chunks_exact_mut(padded.axes[2].output).enumerate() {
            let x = &padded.data[padded.line(line)..];
            for (block, y) in y.chunks_mut(LANES).enumerate() {
                let mut sum = [0.0f32; LANES];
                for (tap, w) in padded.taps.iter().zip(w) {
                    let x = &x[tap + block * LANES..][..LANES];
                    for (s, x) in sum.iter_mut().zip(x) {
                        *s += w * x;
                    }
                }
                if add {
                    y.iter_mut().zip(&sum).for_each(|(y, s)| *y += s);
                } else {
                    y.copy_from_slice(&sum[..y.len()]);
                }
            }
        }
    }
}

/// For each tap, the products of the gradient with what the tap sees, summed.
struct Dots<'a> {
    padded: &'a Padded,
    /// The gradient with lines filled up with zeros to whole blocks.
    dy: &'a [f32],
    sums: &'a mut [f64],
}

impl Body for Dots<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        let Dots { padded, dy, sums } = self;
        let width = padded.axes[2].output.next_multiple_of(LANES);
        // Four taps share each load of dy, and their sums do not wait for each other.
        for (taps, sums) in padded.taps.chunks(4).zip(sums.chunks_mut(4)) {
            let tap: [usize; 4] = std::array::from_fn(|i| taps[i.min(taps.len() - 1)]);
            let mut lanes = [[0.0f32; LANES]; 4];
            for (line, dy) in dy.chunks_exact(width).enumerate() {
                let x = &padded.data[padded.line(line)..];
                let x: [&[f32]; 4] = std::array::from_fn(|i| &x[tap[i]..][..width]);
                let [x0, x1, x2, x3] = x.map(|x| x.chunks_exact(LANES));
                let [l0, l1, l2, l3] = &mut lanes;
                for ((((dy, x0), x1), x2), x3) in dy.chunks_exact(LANES).zip(x0).zip(x1).zip(x2).zip(x3) {
                    for i in 0..LANES {
                        l0[i] += x0[i] * dy[i];
                        l1[i] += x1[i] * dy[i];
                        l2[i] += x2[i] * dy[i];
                        l3[i] += x3[i] * dy[i];
                    }
                }
            }
            for (sum, lanes) in sums.iter_mut().zip(&lanes) {
                *sum += lanes.iter().map(|l| f64::from(*l)).sum::<f64>();
            }
        }
    }
}

/// dx += the transpose of a kernel times dy, for strides that leave gaps.
struct Scatter<'a> {
    c: &'a Conv,
    dy: &'a [f32],
    w: &'a [f32],
    dx: &'a mut [f32],
}

impl Body for Scatter<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        let Scatter { c, dy, w: weight, dx } = self;
        let [d, h, w] = &c.axes;
        for (line, dy) in dy.chunks_exact(w.output).enumerate() {
            for (tap, s) in weight.iter().enumerate() {
                let (kd, kh, kw) = (tap / (h.kernel * w.kernel), tap / w.kernel % h.kernel, tap % w.kernel);
                let at = d.meet(line / h.output, kd).zip(h.meet(line % h.output, kh));
                let (lo, hi) = w.reached(kw);
                let Some((at_d, at_h)) = at.filter(|_| lo < hi) else { continue };
                let dx = &mut dx[(at_d * h.input + at_h) * w.input..][..w.input];
                let dx = &mut dx[lo * w.stride + kw * w.dilation - w.padding..];
                dx.iter_mut().step_by(w.stride).zip(&dy[lo..hi]).for_each(|(dx, dy)| *dx += s * dy);
            }
        }
    }
}
