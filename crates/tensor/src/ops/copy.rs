//! Copying elements between layouts: what the reference kernels of all view ops have in common.

use thalweg_core::{Element, Layout, View, ViewMut, with_dtype};

use crate::ops::elementwise::blocks;

/// The elements of `x` in row-major order.
pub(crate) fn into_dense(x: View<'_>, y: &mut ViewMut<'_>) {
    with_dtype!(y.dtype(), T => blocks::<T, T, 1>([x], y.dense(), |[x], y| y.copy_from_slice(x)));
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
