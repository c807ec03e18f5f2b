//! Reductions over a middle axis: x: (outer, axis, inner) to y: (outer, inner).
//!
//! The axis is cut into blocks by the shape alone; each block is reduced in order, then the blocks are, in
//! order. A narrow `inner` is widened: several rows are taken as one long row and folded at the end.

use crate::rows::reduce;
use crate::scratch::Scratch;
use crate::stream::arithmetic::Number;
use crate::stream::arithmetic::{add_assign, update};
use crate::stream::split::par_chunks_mut;

/// y = Σ x over the axis; 0 when it is empty.
pub fn sum_axis(x: &[f32], [outer, axis, inner]: [usize; 3], y: &mut [f32]) {
    if inner == 1 && axis > 0 {
        return reduce::sum(x, axis, y);
    }
    reduce_axis(x, [outer, axis, inner], y, 0.0, add_assign);
}

/// y = max x over the axis, NaN where it has one; −∞ when it is empty.
pub fn max_axis(x: &[f32], [outer, axis, inner]: [usize; 3], y: &mut [f32]) {
    if inner == 1 && axis > 0 {
        return reduce::max(x, axis, y);
    }
    reduce_axis(x, [outer, axis, inner], y, f32::NEG_INFINITY, |y, x| update(y, x, f32::larger));
}

/// y = min x over the axis, NaN where it has one; +∞ when it is empty.
pub fn min_axis(x: &[f32], [outer, axis, inner]: [usize; 3], y: &mut [f32]) {
    if inner == 1 && axis > 0 {
        return reduce::min(x, axis, y);
    }
    reduce_axis(x, [outer, axis, inner], y, f32::INFINITY, |y, x| update(y, x, f32::smaller));
}

/// Elements of a block: enough to pay for its task, and for the partial result that it leaves.
const BLOCK: usize = 64 * 1024;
/// The width to which narrow rows are widened.
const WIDE: usize = 512;

fn reduce_axis(
    x: &[f32],
    [outer, axis, inner]: [usize; 3],
    y: &mut [f32],
    identity: f32,
    join: impl Fn(&mut [f32], &[f32]) + Sync,
) {
    assert_eq!(x.len(), outer * axis * inner, "reduce_axis: input is not (outer, axis, inner)");
    assert_eq!(y.len(), outer * inner, "reduce_axis: output is not (outer, inner)");
    y.fill(identity);
    if x.is_empty() {
        return;
    }
    let together = (WIDE / inner).clamp(1, axis);
    let depth = (BLOCK / inner).max(16).next_multiple_of(together);
    let blocks = axis.div_ceil(depth);
    if blocks == 1 && outer == 1 || inner > BLOCK {
        // Wide and shallow: cut the columns instead, which changes no sum.
        for x in x.chunks_exact(axis * inner).zip(y.chunks_exact_mut(inner)) {
            let (x, y) = x;
            par_chunks_mut(y, (BLOCK / axis).max(1024), |start, y| {
                let n = y.len();
                x.chunks_exact(inner).for_each(|row| join(y, &row[start..start + n]));
            });
        }
        return;
    }
    // (outer, blocks, inner)
    let mut partial = Scratch::filled(outer * blocks * inner, identity);
    let per_task = (BLOCK / (depth.min(axis) * inner)).max(1);
    par_chunks_mut(&mut partial, per_task * inner, |start, out| {
        let mut wide = Scratch::filled(together * inner, identity);
        for (k, out) in out.chunks_exact_mut(inner).enumerate() {
            let (o, block) = ((start / inner + k) / blocks, (start / inner + k) % blocks);
            let rows = block * depth..axis.min((block + 1) * depth);
            let part = &x[(o * axis + rows.start) * inner..(o * axis + rows.end) * inner];
            wide.fill(identity);
            part.chunks(together * inner).for_each(|chunk| join(&mut wide[..chunk.len()], chunk));
            wide.chunks_exact(inner).for_each(|row| join(out, row));
        }
    });
    for (y, partial) in y.chunks_exact_mut(inner).zip(partial.chunks_exact(blocks * inner)) {
        partial.chunks_exact(inner).for_each(|block| join(y, block));
    }
}

#[cfg(test)]
mod tests {
    use super::{max_axis, min_axis, sum_axis};
    use crate::rows::testing::{close, same_on_threads, values};

    #[test]
    fn axis_reductions_agree_with_f64() {
        let mut shapes = vec![
            [1, 4000, 70],
            [1, 70_000, 3],
            [3, 20_000, 5],
            [1, 3, 200_000],
            [2, 2, 70_000],
            [1, 40, 5000],
        ];
        for n in 0..=70 {
            shapes.extend([[2, n, 3], [3, 5, n], [n, 3, 2], [1, n, n], [n, 7, 1]]);
        }
        for shape @ [outer, axis, inner] in shapes {
            let x = values(outer * axis * inner, 7);
            let want = |start: f64, f: fn(f64, f64) -> f64| {
                let mut y = vec![start; outer * inner];
                for (i, x) in x.iter().enumerate() {
                    let at = i / (axis * inner) * inner + i % inner;
                    y[at] = f(y[at], f64::from(*x));
                }
                y
            };
            let run = |f: fn(&[f32], [usize; 3], &mut [f32])| {
                same_on_threads(|| {
                    let mut y = vec![9.0; outer * inner];
                    f(&x, shape, &mut y);
                    y
                })
            };
            close(&run(sum_axis), &want(0.0, |a, b| a + b), 1e-6 * (axis as f64).sqrt().max(1.0));
            close(&run(max_axis), &want(f64::NEG_INFINITY, f64::max), 0.0);
            close(&run(min_axis), &want(f64::INFINITY, f64::min), 0.0);
        }
    }

    #[test]
    fn nan_comes_through() {
        let mut y = [0.0; 2];
        max_axis(&[1.0, f32::NAN, 3.0, 4.0], [1, 2, 2], &mut y);
        assert!(y[0] == 3.0 && y[1].is_nan());
    }
}
