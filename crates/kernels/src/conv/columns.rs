//! Windows as the columns of a matrix, and back.
//!
//! A column holds what one output position sees: (in_channels, *kernel). A block of columns is some lines
//! (rows of output positions along the last axis) of some images.

use std::ops::Range;

use super::Conv;
use crate::simd::vector::F32s;
use crate::simd::{Body, dispatch};
use crate::stream::split::par_chunks_mut;

/// Elements of the matrix per task.
const GRAIN: usize = 32 << 10;

/// Some lines of some images.
#[derive(Debug, Clone)]
pub(super) struct Block {
    pub images: Range<usize>,
    pub lines: Range<usize>,
}

impl Block {
    pub fn columns(&self, c: &Conv) -> usize {
        self.images.len() * self.lines.len() * c.axes[2].output
    }
}

/// Output lines of one image.
pub(super) fn n_lines(c: &Conv) -> usize {
    c.axes[0].output * c.axes[1].output
}

/// Every window of x as a column: col: (batch, groups · in_channels · taps, outputs).
pub fn im2col(c: &Conv, x: &[f32], col: &mut [f32]) {
    let (rows, n_out) = (c.groups * c.depth(), c.outputs());
    assert_eq!(col.len(), c.batch * rows * n_out, "im2col: columns of the wrong length");
    let whole = as_one_group(c);
    if !col.is_empty() {
        for (n, col) in col.chunks_exact_mut(rows * n_out).enumerate() {
            gather(&whole, x, 0, &Block { images: n..n + 1, lines: 0..n_lines(c) }, col);
        }
    }
}

/// The adjoint of [`im2col`]: columns added up where their windows lie.
pub fn col2im(c: &Conv, col: &[f32], x: &mut [f32]) {
    let (rows, n_out) = (c.groups * c.depth(), c.outputs());
    assert_eq!(col.len(), c.batch * rows * n_out, "col2im: columns of the wrong length");
    x.fill(0.0);
    let whole = as_one_group(c);
    if !col.is_empty() {
        for (n, col) in col.chunks_exact(rows * n_out).enumerate() {
            scatter(&whole, col, 0, &Block { images: n..n + 1, lines: 0..n_lines(c) }, x);
        }
    }
}

/// The same windows with all channels in one group.
fn as_one_group(c: &Conv) -> Conv {
    Conv { groups: 1, in_channels: c.groups * c.in_channels, ..*c }
}

/// Fills `col` (depth, columns of the block) from the images `x` of group `g`.
pub(super) fn gather(c: &Conv, x: &[f32], g: usize, block: &Block, col: &mut [f32]) {
    let (columns, n_in, n_taps) = (block.columns(c), c.inputs(), c.taps());
    par_chunks_mut(col, (GRAIN / columns).max(1) * columns, |start, rows| {
        for (row, y) in (start / columns..).zip(rows.chunks_exact_mut(columns)) {
            let (ci, tap) = (row / n_taps, row % n_taps);
            let per_image = block.lines.len() * c.axes[2].output;
            for (image, y) in block.images.clone().zip(y.chunks_exact_mut(per_image)) {
                let plane = (image * c.groups + g) * c.in_channels + ci;
                gather_lines(c, &x[plane * n_in..(plane + 1) * n_in], tap, block.lines.clone(), y);
            }
        }
    });
}

fn gather_lines(c: &Conv, plane: &[f32], tap: usize, lines: Range<usize>, y: &mut [f32]) {
    let [d, h, w] = &c.axes;
    let (kd, kh, kw) = (tap / (h.kernel * w.kernel), tap / w.kernel % h.kernel, tap % w.kernel);
    let (lo, hi) = w.reached(kw);
    for (line, y) in lines.zip(y.chunks_exact_mut(w.output)) {
        let at = d.meet(line / h.output, kd).zip(h.meet(line % h.output, kh));
        let Some((at_d, at_h)) = at.filter(|_| lo < hi) else {
            y.fill(0.0);
            continue;
        };
        let x = &plane[(at_d * h.input + at_h) * w.input..][..w.input];
        let x = &x[lo * w.stride + kw * w.dilation - w.padding..];
        y[..lo].fill(0.0);
        y[hi..].fill(0.0);
        if w.stride == 1 {
            y[lo..hi].copy_from_slice(&x[..hi - lo]);
        } else {
            y[lo..hi].iter_mut().zip(x.iter().step_by(w.stride)).for_each(|(y, x)| *y = *x);
        }
    }
}

/// Adds the columns of a block to the images `x` of group `g`.
pub(super) fn scatter(c: &Conv, col: &[f32], g: usize, block: &Block, x: &mut [f32]) {
    let (columns, n_in) = (block.columns(c), c.inputs());
    let per_image = block.lines.len() * c.axes[2].output;
    let (channels, image_len) = (c.in_channels, c.groups * c.in_channels * n_in);
    for (i, image) in block.images.clone().enumerate() {
        let group = &mut x[image * image_len..][g * channels * n_in..][..channels * n_in];
        let planes = (GRAIN / (c.taps() * per_image).max(1)).max(1);
        par_chunks_mut(group, planes * n_in, |start, x| {
            for (ci, x) in (start / n_in..).zip(x.chunks_exact_mut(n_in)) {
                let rows = &col[ci * c.taps() * columns..];
                dispatch(ScatterPlane { c, rows, columns, at: i * per_image, lines: block.lines.clone(), x });
            }
        });
    }
}

/// The taps of one channel, added to its plane.
struct ScatterPlane<'a> {
    c: &'a Conv,
    /// (taps, columns)
    rows: &'a [f32],
    columns: usize,
    /// The first column of the plane's image.
    at: usize,
    lines: Range<usize>,
    x: &'a mut [f32],
}

impl Body for ScatterPlane<'_> {
    type Out = ();
    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        let [d, h, w] = &self.c.axes;
        for tap in 0..self.c.taps() {
            let (kd, kh, kw) = (tap / (h.kernel * w.kernel), tap / w.kernel % h.kernel, tap % w.kernel);
            let (lo, hi) = w.reached(kw);
            if lo == hi {
                continue;
            }
            let row = &self.rows[tap * self.columns + self.at..][..self.lines.len() * w.output];
            for (line, y) in self.lines.clone().zip(row.chunks_exact(w.output)) {
                let Some((at_d, at_h)) = d.meet(line / h.output, kd).zip(h.meet(line % h.output, kh)) else {
                    continue;
                };
                let x = &mut self.x[(at_d * h.input + at_h) * w.input..][..w.input];
                let x = &mut x[lo * w.stride + kw * w.dilation - w.padding..];
                if w.stride == 1 {
                    x[..hi - lo].iter_mut().zip(&y[lo..hi]).for_each(|(x, y)| *x += y);
                } else {
                    x.iter_mut().step_by(w.stride).zip(&y[lo..hi]).for_each(|(x, y)| *x += y);
                }
            }
        }
    }
}
