//! Copying elements between layouts: what the reference kernels of all view ops have in common.

use smallvec::SmallVec;
use thalweg_core::runs::for_each_run;
use thalweg_core::{Buffer, Element, Layout, View, ViewMut, with_dtype};
use thalweg_kernels::scratch::Scratch;
use thalweg_kernels::stream::split::par_chunks_mut;
use thalweg_kernels::stream::transpose::{TILE, transpose};

use crate::ops::elementwise::GRAIN;

/// The elements of `x` in row-major order.
pub(crate) fn into_dense(x: View<'_>, y: &mut ViewMut<'_>) {
    fn typed<T: Element + Default>(x: View<'_>, y: &mut [T]) {
        if let Some(x) = x.dense::<T>() {
            return par_chunks_mut(y, GRAIN, |start, y| y.copy_from_slice(&x[start..start + y.len()]));
        }
        let (memory, axes) = (x.memory::<T>(), merged(x.layout()));
        if y.is_empty() {
            return;
        }
        let row = y.len() / axes[0].0;
        // Rows of a transpose are filled by tiles.
        let together = if axes[0].1 == 1 { TILE } else { 1 };
        let rows = (GRAIN / row).max(1).next_multiple_of(together);
        par_chunks_mut(y, rows * row, |start, y| {
            let mut axes = axes.clone();
            axes[0].0 = y.len() / row;
            let first = x.layout().offset() as isize + (start / row) as isize * axes[0].1;
            strided(memory, first, &axes, y);
        });
    }
    with_dtype!(y.dtype(), T => typed::<T>(x, y.dense()));
}

/// Calls `f` with the elements of `x` in row-major order: where they lie, or as a copy.
pub(crate) fn with_dense<T: Element, R>(x: View<'_>, f: impl FnOnce(&[T]) -> R) -> R {
    if let Some(x) = x.dense::<T>() {
        return f(x);
    }
    let mut copy = Buffer::scratch(T::DTYPE, x.shape().numel());
    into_dense(x, &mut ViewMut::new(&mut copy, x.shape()));
    f(copy.as_slice())
}

/// Size and stride of each axis, outermost first, without axes of size 1; neighbours that can be
/// walked as one are one.
fn merged(layout: &Layout) -> SmallVec<[(usize, isize); 4]> {
    let mut axes: SmallVec<[(usize, isize); 4]> = SmallVec::new();
    for (&size, &stride) in layout.shape().iter().zip(layout.strides()).filter(|(d, _)| **d != 1) {
        match axes.last_mut() {
            Some((outer, outer_stride)) if *outer_stride == stride * size as isize => {
                *outer *= size;
                *outer_stride = stride;
            }
            _ => axes.push((size, stride)),
        }
    }
    if axes.is_empty() {
        axes.push((1, 0));
    }
    axes
}

/// Fills `y`, in order, with the elements at `first` + Σ index·stride.
fn strided<T: Element + Default>(memory: &[T], first: isize, axes: &[(usize, isize)], y: &mut [T]) {
    match *axes {
        [] => y.fill(memory[first as usize]),
        [(_, 1)] => y.copy_from_slice(&memory[first as usize..][..y.len()]),
        [(_, 0)] => y.fill(memory[first as usize]),
        [(_, s)] => {
            y.iter_mut().enumerate().for_each(|(i, y)| *y = memory[(first + i as isize * s) as usize])
        }
        [(_, 1), (columns, s)] if s > 1 => transpose(&memory[first as usize..], s as usize, columns, y),
        // The straight axis lies further out: bring it next to the last, one slice at a time.
        [(n, 1), (_, _), .., (columns, s)] if s > 1 && n >= TILE / 2 => {
            let inner = &axes[1..axes.len() - 1];
            let step: usize = inner.iter().map(|&(n, _)| n).product::<usize>() * columns;
            let starts = offsets(inner);
            let mut block = Scratch::filled(n * columns, T::default());
            for (k, &start) in starts.iter().enumerate() {
                transpose(&memory[(first + start) as usize..], s as usize, columns, &mut block);
                for (y, block) in y.chunks_exact_mut(step).zip(block.chunks_exact(columns)) {
                    y[k * columns..][..columns].copy_from_slice(block);
                }
            }
        }
        [(n, s), ref inner @ ..] => {
            let row = y.len() / n;
            for (i, y) in y.chunks_exact_mut(row).enumerate() {
                strided(memory, first + i as isize * s, inner, y);
            }
        }
    }
}

/// Where each index of some axes lies, in row-major order.
fn offsets(axes: &[(usize, isize)]) -> Scratch<isize> {
    Scratch::each(axes.iter().map(|(n, _)| n).product(), |i| {
        let axis =
            |(rest, at): (usize, isize), &(n, s): &(usize, isize)| (rest / n, at + (rest % n) as isize * s);
        axes.iter().rev().fold((i, 0), axis).1
    })
}

/// Writes the elements of `x` to the positions of a layout over `y`, both in row-major order.
pub(crate) fn place<T: Element>(x: View<'_>, places: &Layout, y: &mut [T]) {
    let memory = x.memory::<T>();
    for_each_run([x.layout(), places], |[from, to], len, strides| match strides {
        [1, 1] => y[to..to + len].copy_from_slice(&memory[from..from + len]),
        [s, t] => {
            for i in 0..len as isize {
                y[(to as isize + i * t) as usize] = memory[(from as isize + i * s) as usize];
            }
        }
    });
}

/// The memory of `x` seen through another layout, in row-major order.
pub(crate) fn through_layout(x: View<'_>, layout: &Layout, y: &mut ViewMut<'_>) {
    fn typed<T: Element>(x: View<'_>, layout: &Layout, y: &mut ViewMut<'_>) {
        let memory = x.memory::<T>();
        for (y, at) in y.dense::<T>().iter_mut().zip(layout.positions()) {
            *y = memory[at];
        }
    }
    with_dtype!(y.dtype(), T => typed::<T>(x, layout, y));
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_core::{DType, Shape};

    #[test]
    fn every_layout_is_copied_as_its_positions_say() {
        let n = 3 * 50 * 40 * 17;
        let buffer = Buffer::from_slice(&(0..n).map(|i| i as f32).collect::<Vec<_>>());
        let base = |s: &[usize]| Layout::contiguous(Shape::from(s));
        let four = base(&[3, 17, 40, 50]);
        let layouts = [
            base(&[300, 340]).permute(&[1, 0]),
            base(&[17, 33]).permute(&[1, 0]),
            base(&[64, 64]).permute(&[1, 0]).slice(0, 3, 20, 3),
            base(&[64, 64]).permute(&[1, 0]).slice(1, 60, 30, -2),
            four.permute(&[0, 2, 1, 3]),
            four.permute(&[3, 2, 1, 0]),
            four.permute(&[0, 3, 1, 2]),
            four.permute(&[3, 0, 1, 2]).slice(0, 49, 50, -1),
            base(&[1, 33]).broadcast_to(&[40, 33].into()).unwrap(),
            base(&[33, 1]).broadcast_to(&[33, 40].into()).unwrap().permute(&[1, 0]),
            base(&[200, 300]).slice(1, 1, 100, 3),
            base(&[30, 40]).diagonal(2, 0, 1),
            base(&[400]).windows(0, 50, 3),
            base(&[5, 0, 3]).permute(&[2, 1, 0]),
            base(&[]),
        ];
        for layout in &layouts {
            let x = View::new(&buffer, layout);
            let mut y = Buffer::scratch(DType::F32, layout.numel());
            into_dense(x, &mut ViewMut::new(&mut y, layout.shape()));
            let want: Vec<f32> = layout.positions().map(|p| p as f32).collect();
            assert!(y.as_slice::<f32>() == want, "{layout:?}");
        }
    }
}
