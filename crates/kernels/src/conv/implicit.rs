//! Windows one step apart, without the matrix of columns: its rows are rows of the image, see
//! [`crate::gemm::windows`].
//!
//! Output positions are counted along lines as wide as the (padded) input, so that a tap's values are one
//! straight run over several lines; the few positions at the end of a line that are no outputs are computed
//! and dropped. A task takes some lines of one image. Images with padding are copied line by line into a
//! padded one, in cache. The gradient of x is itself such a convolution, of dy with the turned weight.

use std::ops::Range;

use super::dense::{COLUMNS, PIECES, RESULT, sum_pieces, with_scratch};
use super::destination::Destination;
use super::{Axis, Conv};
use crate::gemm::packed::{Packed, packed_len};
use crate::gemm::windows::{PackedRows, Windows, add_windows_by, gemm_windows};
use crate::gemm::{MatRef, Ready, tell};
use crate::threads::parallel;

/// Positions of a task, about: enough to pay for what a task prepares, few enough for the cache.
const POSITIONS: usize = 1024;

/// Tasks below which output channels are shared out too, and multiply-adds that each should have.
const ENOUGH_TASKS: usize = 16;
const TASK_WORK: usize = 1 << 20;

/// Elements that are told together, about: what follows should find them in the nearest cache.
const TOLD: usize = 8 << 10;

/// Output channels from which a group of one input channel runs as a product: it reads each window so often.
const FEW_CHANNELS: usize = 8;

/// Whether this is the way to go: windows one step apart whose lines waste few positions.
pub(super) fn suits(c: &Conv) -> bool {
    let [_, h, w] = &c.axes;
    let waste = (w.kernel - 1) * w.dilation;
    c.axes.iter().all(|a| a.stride == 1)
        && c.taps() > 1
        && (c.in_channels > 1 || c.out_channels >= FEW_CHANNELS)
        && h.output * w.output >= 64
        && 7 * waste <= w.output
}

/// Whether a task's lines are whole planes.
pub(super) fn makes_planes(c: &Conv) -> bool {
    let [d, h, _] = &c.axes;
    d.output == 1 && lines_per_task(c) == h.output
}

/// Elements of whole planes that are told together.
pub(super) fn told(c: &Conv) -> usize {
    (TOLD / c.outputs()).max(1) * c.outputs()
}

/// The convolution that gives the gradient of x, if it is one that [`suits`].
pub(super) fn turned(c: &Conv) -> Option<Conv> {
    let mut axes = c.axes;
    for a in &mut axes {
        let padding = ((a.kernel.max(1) - 1) * a.dilation).checked_sub(a.padding)?;
        *a = Axis { input: a.output, output: a.input, padding, ..*a };
    }
    let turned = Conv { in_channels: c.out_channels, out_channels: c.in_channels, axes, ..*c };
    (suits(&turned) && c.in_channels > 1).then_some(turned)
}

/// y = w over x.
pub(super) fn forward(c: &Conv, x: &[f32], w: &[f32], y: Destination<'_>, ready: Ready) {
    let len = PackedRows::len_of(c.out_channels, c.depth());
    with_scratch(&PIECES, c.groups * len, |room| {
        let lines = lines_per_task(c);
        let n_parts = c.batch * c.groups * c.axes[0].output * c.axes[1].output.div_ceil(lines);
        let per_task = channels_per_task(c, n_parts);
        let n_blocks = c.out_channels.div_ceil(per_task);
        // Planes that lie side by side in the result are told together.
        let at_once = if makes_planes(c) { told(c) / c.outputs() } else { 1 };
        let weight = |g: usize| {
            let n = c.out_channels * c.depth();
            MatRef::row_major(&w[g * n..(g + 1) * n], c.out_channels, c.depth())
        };
        room.chunks_exact_mut(len).enumerate().for_each(|(g, room)| {
            PackedRows::new(weight(g), room);
        });
        let room = &*room;
        parallel(n_parts * n_blocks, &|task| {
            let (part, block) = (Part::new(c, task / n_blocks, lines), task % n_blocks);
            let channels = block * per_task..c.out_channels.min((block + 1) * per_task);
            let w = PackedRows::packed(&room[part.group * len..][..len], c.out_channels, c.depth());
            let w = w.rows(channels.clone());
            part.with_windows(c, x, |windows, width| {
                let n = windows.cols();
                with_scratch(&RESULT, channels.len() * n, |product| {
                    gemm_windows(w, windows, product, n);
                    for (i, product) in product.chunks(at_once * n).enumerate() {
                        let first = channels.start + i * at_once;
                        let last = first + product.len() / n - 1;
                        let to = part.outputs(c, first).start..part.outputs(c, last).end;
                        let leave = |y: &mut [f32]| {
                            trim(product, n, width, c.axes[2].output, y);
                            tell(ready, to.start, y);
                        };
                        // SAFETY: no two tasks have lines of a channel in common.
                        unsafe { y.with(to.clone(), leave) };
                    }
                });
            });
        });
    });
}

/// Copies lines of several channels, `n` positions of each, without those at the end of a line that are no outputs.
fn trim(product: &[f32], n: usize, width: usize, output: usize, y: &mut [f32]) {
    let channel = y.len() / (product.len() / n);
    for (product, y) in product.chunks_exact(n).zip(y.chunks_exact_mut(channel)) {
        let lines = product.chunks(width).zip(y.chunks_exact_mut(output));
        lines.for_each(|(from, y)| y.copy_from_slice(&from[..y.len()]));
    }
}

/// dx, as the convolution `turned` of dy.
pub(super) fn input_gradient(c: &Conv, turned: &Conv, dy: &[f32], w: &[f32], dx: &mut [f32], ready: Ready) {
    let (taps, n) = (c.taps(), c.out_channels * c.depth());
    with_scratch(&TURNED, w.len(), |room| {
        for (w, to) in w.chunks_exact(n).zip(room.chunks_exact_mut(n)) {
            for (at, to) in to.chunks_exact_mut(taps).enumerate() {
                let (ci, co) = (at / c.out_channels, at % c.out_channels);
                let from = &w[(co * c.in_channels + ci) * taps..][..taps];
                to.iter_mut().zip(from.iter().rev()).for_each(|(to, w)| *to = *w);
            }
        }
        forward(turned, dy, room, Destination::kept(dx), ready);
    });
}

/// dw: for each task's lines, the windows times dy; summed in a fixed number of pieces of the batch.
pub(super) fn weight_gradient(c: &Conv, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    let (lines, n_pieces) = (lines_per_task(c), c.batch.min(8));
    let n_parts = c.axes[0].output * c.axes[1].output.div_ceil(lines);
    let (per_piece, n) = (c.batch.div_ceil(n_pieces), dw.len());
    let group = c.depth() * c.out_channels;
    with_scratch(&PIECES, n * n_pieces, |pieces| {
        sum_pieces(pieces, n, |piece, sum| {
            sum.fill(0.0);
            let images = (piece * per_piece).min(c.batch)..((piece + 1) * per_piece).min(c.batch);
            let tasks = images.start * c.groups * n_parts..images.end * c.groups * n_parts;
            for part in tasks.map(|task| Part::new(c, task, lines)) {
                part.with_windows(c, x, |windows, width| {
                    let lines = part.lines.clone().map(|line| {
                        let from = part.output(c, 0, line);
                        MatRef::new(&dy[from.start..], from.len(), c.out_channels, 1, c.outputs())
                    });
                    with_scratch(&RESULT, packed_len(lines.len() * width, c.out_channels), |room| {
                        let dy = Packed::of_pieces(lines, width, c.out_channels, room);
                        let sum = &mut sum[part.group * group..][..group];
                        add_windows_by(windows, dy.rows(0..windows.cols()), sum);
                    });
                });
            }
        });
        // The sums are (depth, out_channels).
        for (dw, sum) in dw.chunks_exact_mut(group).zip(pieces[..n].chunks_exact(group)) {
            let sum = MatRef::row_major(sum, c.depth(), c.out_channels).t();
            for (co, dw) in dw.chunks_exact_mut(c.depth()).enumerate() {
                dw.iter_mut().enumerate().for_each(|(k, dw)| *dw = sum.at(co, k));
            }
        }
    });
}

thread_local! {
    static TURNED: std::cell::Cell<Vec<f32>> = const { std::cell::Cell::new(Vec::new()) };
    static OFFSETS: std::cell::Cell<Vec<usize>> = const { std::cell::Cell::new(Vec::new()) };
}

/// Lines of one output plane that a task takes: all planes in equal parts.
fn lines_per_task(c: &Conv) -> usize {
    let [_, h, w] = &c.axes;
    let n_parts = (h.output * w.output).div_ceil(POSITIONS).min(h.output);
    h.output.div_ceil(n_parts)
}

/// Output channels that a task takes if there are so many parts: all of them, or some panels of the weight.
fn channels_per_task(c: &Conv, n_parts: usize) -> usize {
    let work = c.out_channels * c.depth() * lines_per_task(c) * c.axes[2].output;
    let n_blocks = (ENOUGH_TASKS / n_parts).min(work / TASK_WORK).max(1);
    c.out_channels.div_ceil(n_blocks).next_multiple_of(PackedRows::panel())
}

/// Some lines of one output plane of one group of one image.
struct Part {
    image: usize,
    group: usize,
    depth: usize,
    lines: Range<usize>,
}

impl Part {
    fn new(c: &Conv, task: usize, lines: usize) -> Self {
        let [d, h, _] = &c.axes;
        let n_parts = h.output.div_ceil(lines);
        let (rest, part) = (task / n_parts, task % n_parts);
        let (rest, depth) = (rest / d.output, rest % d.output);
        let lines = part * lines..h.output.min((part + 1) * lines);
        Self { image: rest / c.groups, group: rest % c.groups, depth, lines }
    }

    /// Where the lines of a channel of the output lie.
    fn outputs(&self, c: &Conv, channel: usize) -> Range<usize> {
        let first = self.output(c, channel, self.lines.start).start;
        first..first + self.lines.len() * c.axes[2].output
    }

    /// Where a line of the output lies.
    fn output(&self, c: &Conv, channel: usize, line: usize) -> Range<usize> {
        let [_, h, w] = &c.axes;
        let plane = (self.image * c.groups + self.group) * c.out_channels + channel;
        let from = plane * c.outputs() + (self.depth * h.output + line) * w.output;
        from..from + w.output
    }

    /// The windows of the part, and how wide its lines are.
    fn with_windows(&self, c: &Conv, x: &[f32], f: impl FnOnce(Windows<'_>, usize)) {
        let [d, h, w] = &c.axes;
        let image = (self.image * c.groups + self.group) * c.in_channels * c.inputs();
        let x = &x[image..][..c.in_channels * c.inputs()];
        let inside = |a: &Axis| a.padding == 0 && a.output + (a.kernel - 1) * a.dilation <= a.input;
        if [d, h, w].into_iter().all(inside) {
            let x = &x[(self.depth * h.input + self.lines.start) * w.input..];
            let steps = [c.inputs(), d.dilation * h.input * w.input, h.dilation * w.input, w.dilation];
            return self.with_offsets(c, x, steps, w.input, f);
        }
        // (in_channels, taps along the depth, lines that the part sees, padded width)
        let n_lines = self.lines.len() + (h.kernel - 1) * h.dilation;
        let width = w.output + (w.kernel - 1) * w.dilation;
        with_scratch(&COLUMNS, c.in_channels * d.kernel * n_lines * width, |padded| {
            for (at, line) in padded.chunks_exact_mut(width).enumerate() {
                let (rest, row) = (at / n_lines, at % n_lines + self.lines.start);
                let (ci, kd) = (rest / d.kernel, rest % d.kernel);
                let from = d.meet(self.depth, kd).zip(row.checked_sub(h.padding).filter(|&r| r < h.input));
                let Some((at_d, at_h)) = from else {
                    line.fill(0.0);
                    continue;
                };
                let x = &x[((ci * d.input + at_d) * h.input + at_h) * w.input..][..w.input];
                let (left, rest) = line.split_at_mut(w.padding.min(width));
                let (middle, right) = rest.split_at_mut(w.input.min(rest.len()));
                left.fill(0.0);
                middle.copy_from_slice(&x[..middle.len()]);
                right.fill(0.0);
            }
            let plane = n_lines * width;
            self.with_offsets(c, padded, [d.kernel * plane, plane, h.dilation * width, w.dilation], width, f);
        });
    }

    /// `steps`: elements from one channel and one tap along each axis to the next.
    fn with_offsets(
        &self,
        c: &Conv,
        x: &[f32],
        [by_channel, by_d, by_h, by_w]: [usize; 4],
        width: usize,
        f: impl FnOnce(Windows<'_>, usize),
    ) {
        let [d, h, w] = &c.axes;
        let mut offsets = OFFSETS.take();
        offsets.clear();
        for ci in 0..c.in_channels {
            for (kd, kh) in (0..d.kernel).flat_map(|kd| (0..h.kernel).map(move |kh| (kd, kh))) {
                let first = ci * by_channel + kd * by_d + kh * by_h;
                offsets.extend((0..w.kernel).map(|kw| first + kw * by_w));
            }
        }
        let positions = (self.lines.len() - 1) * width + w.output;
        f(Windows::new(x, &offsets, positions), width);
        OFFSETS.set(offsets);
    }
}
