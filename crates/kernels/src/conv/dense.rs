//! Groups with many channels: the windows become columns, and the rest is the matrix product.

use std::cell::Cell;
use std::ops::Range;

use super::Conv;
use super::columns::{Block, gather, n_lines, scatter};
use super::destination::Destination;
use crate::gemm::{MatRef, Ready, gemm_f32, tell};
use crate::stream::arithmetic::add_assign;
use crate::stream::split::par_chunks_mut;

/// Elements of a matrix of columns: a few of them fit the last cache.
const COLUMN_ELEMENTS: usize = 1 << 20;
/// Columns from which packing the weight is no longer felt in a product.
const WIDE: usize = 512;
/// Multiply-adds below which threads do not pay.
const SMALL: usize = 1 << 18;
/// Elements up to which a weight is summed in several copies at once.
pub(super) const SMALL_WEIGHT: usize = 1 << 18;

/// y = w over x: for each block of columns, y = w · columns.
pub(super) fn forward(c: &Conv, x: &[f32], w: &[f32], y: Destination<'_>, ready: Ready) {
    let image_len = c.image();
    y.chunks(c.batch * image_len, images_per_task(c) * image_len, |start, y| {
        let images = start / image_len..(start + y.len()) / image_len;
        for g in 0..c.groups {
            for_each_block(c, images.clone(), |block| {
                with_columns(c, x, g, block, |col| {
                    let first = block.images.start - images.start;
                    let to = &mut y[first * image_len..];
                    product_into(c, w, g, block, col, to);
                });
            });
        }
        tell(ready, start, y);
    });
}

fn product_into(c: &Conv, w: &[f32], g: usize, block: &Block, col: MatRef<'_, f32>, y: &mut [f32]) {
    let n_out = c.outputs();
    let group = g * c.out_channels * n_out;
    if block.images.len() == 1 {
        let from = group + block.lines.start * c.axes[2].output;
        gemm_f32(weight_of(c, w, g), col, &mut y[from..], n_out, false);
        return;
    }
    let (columns, image_len) = (block.columns(c), c.image());
    with_scratch(&RESULT, c.out_channels * columns, |product| {
        gemm_f32(weight_of(c, w, g), col, product, columns, false);
        for (i, y) in y.chunks_exact_mut(image_len).take(block.images.len()).enumerate() {
            let planes = y[group..group + c.out_channels * n_out].chunks_exact_mut(n_out);
            for (y, row) in planes.zip(product.chunks_exact(columns)) {
                y.copy_from_slice(&row[i * n_out..(i + 1) * n_out]);
            }
        }
    });
}

/// dx: for each block of columns, columns = wᵀ · dy, added up where they lie.
pub(super) fn input_gradient(c: &Conv, dy: &[f32], w: &[f32], dx: &mut [f32], ready: Ready) {
    let image_len = c.groups * c.in_channels * c.inputs();
    if image_len == 0 {
        return;
    }
    par_chunks_mut(dx, images_per_task(c) * image_len, |start, dx| {
        let images = start / image_len..(start + dx.len()) / image_len;
        let direct = is_pointwise(c) && images.len() == 1;
        if !direct {
            dx.fill(0.0);
        }
        for g in 0..c.groups {
            if direct {
                let block = Block { images: images.clone(), lines: 0..n_lines(c) };
                let n_in = c.inputs();
                let to = &mut dx[g * c.in_channels * n_in..];
                with_gradient(c, dy, g, &block, |dy| {
                    gemm_f32(weight_of(c, w, g).t(), dy, to, n_in, false);
                });
                continue;
            }
            for_each_block(c, images.clone(), |block| {
                let columns = block.columns(c);
                with_scratch(&COLUMNS, c.depth() * columns, |col| {
                    with_gradient(c, dy, g, block, |dy| {
                        gemm_f32(weight_of(c, w, g).t(), dy, col, columns, false);
                    });
                    let (from, to) = (block.images.start - images.start, block.images.end - images.start);
                    let local = Block { images: from..to, lines: block.lines.clone() };
                    scatter(c, col, g, &local, dx);
                });
            });
        }
        tell(ready, start, dx);
    });
}

/// dw: the sum over blocks of dy · columnsᵀ. A small weight is summed in a fixed number of pieces of the
/// batch at once, then piece by piece; a large one keeps all threads busy inside each product.
pub(super) fn weight_gradient(c: &Conv, x: &[f32], dy: &[f32], dw: &mut [f32]) {
    let n_pieces = if dw.len() <= SMALL_WEIGHT && work(c) > SMALL { c.batch.min(8) } else { 1 };
    let per_piece = c.batch.div_ceil(n_pieces);
    if n_pieces == 1 {
        return weight_piece(c, x, dy, 0..c.batch, dw);
    }
    let n = dw.len();
    with_scratch(&PIECES, n * n_pieces, |pieces| {
        sum_pieces(pieces, n, |piece, dw| {
            let first = piece * per_piece;
            weight_piece(c, x, dy, first.min(c.batch)..(first + per_piece).min(c.batch), dw);
        });
        dw.copy_from_slice(&pieces[..n]);
    });
}

/// Fills pieces of `n` elements at once by `f` and adds them up in the first, in order.
pub(super) fn sum_pieces(pieces: &mut [f32], n: usize, f: impl Fn(usize, &mut [f32]) + Sync) {
    par_chunks_mut(pieces, n, |start, piece| f(start / n, piece));
    let (first, rest) = pieces.split_at_mut(n);
    rest.chunks_exact(n).for_each(|piece| add_assign(first, piece));
}

fn weight_piece(c: &Conv, x: &[f32], dy: &[f32], images: Range<usize>, dw: &mut [f32]) {
    dw.fill(0.0);
    let n = c.out_channels * c.depth();
    for (g, dw) in dw.chunks_exact_mut(n).enumerate() {
        for_each_block(c, images.clone(), |block| {
            with_columns(c, x, g, block, |col| {
                with_gradient(c, dy, g, block, |dy| gemm_f32(dy, col.t(), dw, c.depth(), true));
            });
        });
    }
}

fn work(c: &Conv) -> usize {
    c.batch * c.groups * c.out_channels * c.outputs() * c.depth()
}

/// Whether the columns are the images themselves.
fn is_pointwise(c: &Conv) -> bool {
    c.axes.iter().all(|a| a.kernel == 1 && a.stride == 1 && a.padding == 0 && a.input == a.output)
}

/// Small images share a product; every task of a batch should still be one of several.
pub(super) fn images_per_task(c: &Conv) -> usize {
    if work(c) <= SMALL {
        return c.batch.max(1);
    }
    images_per_block(c).min(c.batch.div_ceil(4)).max(1)
}

fn images_per_block(c: &Conv) -> usize {
    let room = COLUMN_ELEMENTS / (c.depth() * c.outputs());
    WIDE.div_ceil(c.outputs()).min(2 * room).max(1)
}

/// Cuts images into blocks: several small images, or one, or lines of a large one.
fn for_each_block(c: &Conv, images: Range<usize>, mut f: impl FnMut(&Block)) {
    let step = images_per_block(c);
    let lines = n_lines(c);
    let per_block = if step > 1 || is_pointwise(c) {
        lines
    } else {
        (COLUMN_ELEMENTS / (c.depth() * c.axes[2].output)).clamp(1, lines)
    };
    for first in images.clone().step_by(step) {
        for line in (0..lines).step_by(per_block) {
            f(&Block {
                images: first..(first + step).min(images.end),
                lines: line..(line + per_block).min(lines),
            });
        }
    }
}

/// (out_channels, depth) of one group.
fn weight_of<'a>(c: &Conv, w: &'a [f32], g: usize) -> MatRef<'a, f32> {
    let n = c.out_channels * c.depth();
    MatRef::row_major(&w[g * n..(g + 1) * n], c.out_channels, c.depth())
}

/// (depth, columns) of a block.
fn with_columns(c: &Conv, x: &[f32], g: usize, block: &Block, f: impl FnOnce(MatRef<'_, f32>)) {
    let columns = block.columns(c);
    if is_pointwise(c) && block.images.len() == 1 {
        let plane = (block.images.start * c.groups + g) * c.in_channels;
        return f(MatRef::row_major(
            &x[plane * columns..][..c.in_channels * columns],
            c.in_channels,
            columns,
        ));
    }
    with_scratch(&COLUMNS, c.depth() * columns, |col| {
        gather(c, x, g, block, col);
        f(MatRef::row_major(col, c.depth(), columns));
    });
}

/// (out_channels, columns) of dy for a block.
fn with_gradient(c: &Conv, dy: &[f32], g: usize, block: &Block, f: impl FnOnce(MatRef<'_, f32>)) {
    let (n_out, columns) = (c.outputs(), block.columns(c));
    let plane = |image: usize| (image * c.groups + g) * c.out_channels;
    if block.images.len() == 1 {
        let from = plane(block.images.start) * n_out + block.lines.start * c.axes[2].output;
        return f(MatRef::new(&dy[from..], c.out_channels, columns, n_out, 1));
    }
    with_scratch(&RESULT, c.out_channels * columns, |joined| {
        for (co, row) in joined.chunks_exact_mut(columns).enumerate() {
            for (image, to) in block.images.clone().zip(row.chunks_exact_mut(n_out)) {
                to.copy_from_slice(&dy[(plane(image) + co) * n_out..][..n_out]);
            }
        }
        f(MatRef::row_major(joined, c.out_channels, columns));
    });
}

thread_local! {
    pub(super) static COLUMNS: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    pub(super) static RESULT: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
    pub(super) static PIECES: Cell<Vec<f32>> = const { Cell::new(Vec::new()) };
}

/// Room for `len` elements with any old contents, kept by the thread for the next call. It is out of its
/// slot meanwhile: a nested use allocates, it never shares.
pub(super) fn with_scratch<R>(
    slot: &'static std::thread::LocalKey<Cell<Vec<f32>>>,
    len: usize,
    f: impl FnOnce(&mut [f32]) -> R,
) -> R {
    let mut memory = slot.take();
    if memory.len() < len {
        memory.resize(len, 0.0);
    }
    let result = f(&mut memory[..len]);
    slot.set(memory);
    result
}
