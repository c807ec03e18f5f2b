//! How reductions over several axes are brought to kernels over one axis of dense memory.
//!
//! Neighbouring axes that are reduced, and neighbours that stay, count as one: most reductions are then over the
//! middle of (outer, axis, inner). Every sum has an order that depends on the shape alone.

use half::{bf16, f16};
use smallvec::SmallVec;
use thalweg_core::{Buffer, DType, Element, Layout, View, ViewMut, with_dtype};
use thalweg_kernels::scratch::Scratch;
use thalweg_kernels::stream::convert::{cast, f16_to_f32};
use thalweg_kernels::stream::split::par_chunks_mut;

use crate::ops::elementwise::{GRAIN, blocks, through};
use crate::ops::reduction::{AxisList, reduced_last};

/// A reduction over a middle axis: x: (outer, axis, inner) to y: (outer, inner).
pub(crate) type AxisKernel = fn(&[f32], [usize; 3], &mut [f32]);

/// Columns that one task reduces together.
pub(crate) const WIDTH: usize = 256;

/// Reduces f32, f16 and bf16 of any layout by a kernel that may be applied to one stretch of axes after the
/// other, and lets `finish` work on the result before it is rounded to half precision.
pub(crate) fn fast_axes(
    x: View<'_>,
    axes: &[usize],
    y: &mut ViewMut<'_>,
    kernel: AxisKernel,
    finish: impl Fn(&mut [f32]),
) -> bool {
    let order = memory_order(x.layout(), axes);
    let layout = x.layout().permute(&order);
    let Some(mut values) = Singles::of(x.with_layout(&layout)) else { return false };
    let mut groups = Groups::new(x, axes, &order);
    while let Some(sizes) = groups.pop_last() {
        if y.dtype() == DType::F32 && groups.is_done() {
            kernel(values.slice(), sizes, y.dense());
            finish(y.dense());
            return true;
        }
        let mut next = Buffer::scratch(DType::F32, sizes[0] * sizes[2]);
        kernel(values.slice(), sizes, next.as_mut_slice());
        values = Singles::Own(next);
    }
    values.store(y, finish);
    true
}

/// Reduces f32, f16 and bf16 of any layout by a kernel that needs all elements of a result at once.
pub(crate) fn fast_middle(
    x: View<'_>,
    axes: &[usize],
    y: &mut ViewMut<'_>,
    kernel: impl Fn(&[f32], [usize; 3], &mut [f32]),
) -> bool {
    with_middle(x, axes, |x, sizes| {
        if y.dtype() == DType::F32 {
            return kernel(x, sizes, y.dense());
        }
        let mut result = Buffer::scratch(DType::F32, y.shape().numel());
        kernel(x, sizes, result.as_mut_slice());
        Singles::Own(result).store(y, |_| {});
    })
}

/// Calls `f` with the elements as dense f32 and their sizes (outer, axis, inner), the axis in the middle the one to
/// be reduced. `false`, and no call, for dtypes that f32 does not hold exactly.
pub(crate) fn with_middle(x: View<'_>, axes: &[usize], f: impl FnOnce(&[f32], [usize; 3])) -> bool {
    let order = memory_order(x.layout(), axes);
    let mut groups = Groups::new(x, axes, &order);
    let sizes = groups.pop_last().unwrap_or([x.shape().numel(), 1, 1]);
    let (layout, sizes) = match groups.is_done() {
        true => (x.layout().permute(&order), sizes),
        // Stretches apart from each other are brought together by a copy.
        false => {
            let (layout, n) = reduced_last(x.layout(), axes);
            (layout, [x.shape().numel() / n.max(1), n, 1])
        }
    };
    let values = Singles::of(x.with_layout(&layout));
    let covered = values.is_some();
    if let Some(values) = values {
        f(values.slice(), sizes);
    }
    covered
}

/// Sums dense elements by `add` over one stretch of axes; `false` for other operands.
pub(crate) fn fast_plain<T: Element, U: Element + Default>(
    x: View<'_>,
    axes: &[usize],
    y: &mut [U],
    add: impl Fn(U, T) -> U + Sync,
    join: impl Fn(U, U) -> U + Sync,
) -> bool {
    let order = memory_order(x.layout(), axes);
    let mut groups = Groups::new(x, axes, &order);
    let Some([_, axis, inner]) = groups.pop_last() else { return false };
    let layout = x.layout().permute(&order);
    let (Some(x), true) = (x.with_layout(&layout).dense::<T>(), groups.is_done()) else { return false };
    let slab = axis * inner;
    if slab == 0 {
        y.fill(U::default());
        return true;
    }
    par_chunks_mut(y, (GRAIN / slab).max(1) * inner, |start, y| {
        let x = &x[start * axis..][..y.len() * axis];
        for (x, y) in x.chunks_exact(slab).zip(y.chunks_exact_mut(inner)) {
            if inner > 1 {
                y.fill(U::default());
                for row in x.chunks_exact(inner) {
                    y.iter_mut().zip(row).for_each(|(y, &v)| *y = add(*y, v));
                }
                continue;
            }
            // Eight sums side by side, so that one need not wait for another.
            let mut lanes = [U::default(); 8];
            let groups = x.chunks_exact(8);
            let rest = groups.remainder().iter().fold(U::default(), |sum, &v| add(sum, v));
            for group in groups {
                lanes.iter_mut().zip(group).for_each(|(sum, &v)| *sum = add(*sum, v));
            }
            y[0] = lanes.into_iter().fold(rest, &join);
        }
    });
    true
}

/// Calls `f` with pieces of at most [`WIDTH`] results and the rows above them, on all threads. x: (outer, axis,
/// inner), y: (outer, inner).
pub(crate) fn by_columns<U: Send>(
    x: &[f32],
    [_, axis, inner]: [usize; 3],
    y: &mut [U],
    f: impl Fn(Rows<'_>, &mut [U]) + Sync,
) {
    par_chunks_mut(y, WIDTH, |mut start, mut y| {
        while !y.is_empty() {
            let (outer, col) = (start / inner, start % inner);
            let (piece, after) = y.split_at_mut((inner - col).min(y.len()));
            let first = outer * axis * inner + col;
            f(Rows { x, first, inner, axis, len: piece.len() }, piece);
            start += piece.len();
            y = after;
        }
    });
}

/// The elements that make some neighbouring results, a row at a time.
#[derive(Clone, Copy)]
pub(crate) struct Rows<'a> {
    x: &'a [f32],
    first: usize,
    inner: usize,
    axis: usize,
    len: usize,
}

impl<'a> Rows<'a> {
    pub fn iter(self) -> impl Iterator<Item = &'a [f32]> {
        (0..self.axis).map(move |k| &self.x[self.first + k * self.inner..][..self.len])
    }
}

/// Sizes of stretches of axes and whether they are reduced, outermost first, neighbours of one kind merged.
struct Groups(SmallVec<[(usize, bool); 4]>);

impl Groups {
    fn new(x: View<'_>, axes: &[usize], order: &[usize]) -> Self {
        let mut groups: SmallVec<[(usize, bool); 4]> = SmallVec::new();
        for &axis in order {
            let (size, reduced) = (x.shape()[axis], axes.contains(&axis));
            match groups.last_mut() {
                Some((n, kind)) if *kind == reduced => *n *= size,
                _ => groups.push((size, reduced)),
            }
        }
        Self(groups)
    }

    /// Takes out the last stretch that is reduced: (outer, axis, inner).
    fn pop_last(&mut self) -> Option<[usize; 3]> {
        let at = self.0.iter().rposition(|g| g.1)?;
        let product = |groups: &[(usize, bool)]| groups.iter().map(|g| g.0).product::<usize>();
        let sizes = [product(&self.0[..at]), self.0[at].0, product(&self.0[at + 1..])];
        self.0.remove(at);
        Some(sizes)
    }

    fn is_done(&self) -> bool {
        !self.0.iter().any(|g| g.1)
    }
}

/// The axes in an order in which the elements lie straight in memory, if that leaves the axes that stay in their
/// order; else the order they have.
fn memory_order(layout: &Layout, axes: &[usize]) -> AxisList {
    let natural: AxisList = (0..layout.shape().rank()).collect();
    let mut order = natural.clone();
    order.sort_by_key(|&axis| (std::cmp::Reverse(layout.strides()[axis]), axis));
    let stays = order.iter().filter(|a| !axes.contains(a)).is_sorted();
    if stays && layout.permute(&order).is_contiguous() { order } else { natural }
}

/// Elements as dense f32: where they lie, or a copy.
enum Singles<'a> {
    Borrowed(&'a [f32]),
    Own(Buffer),
}

impl<'a> Singles<'a> {
    /// `None` for dtypes that f32 does not hold exactly.
    fn of(x: View<'a>) -> Option<Self> {
        if x.dtype() == DType::F32
            && let Some(dense) = x.dense()
        {
            return Some(Singles::Borrowed(dense));
        }
        let mut copy = Buffer::scratch(DType::F32, x.shape().numel());
        match x.dtype() {
            DType::F32 => blocks::<f32, f32, 1>([x], copy.as_mut_slice(), |[x], y| y.copy_from_slice(x)),
            DType::F16 => widen_into::<f16>(x, &mut copy, f16_to_f32),
            DType::BF16 => widen_into::<bf16>(x, &mut copy, cast),
            _ => return None,
        }
        Some(Singles::Own(copy))
    }

    fn slice(&self) -> &[f32] {
        match self {
            Singles::Borrowed(x) => x,
            Singles::Own(x) => x.as_slice(),
        }
    }

    /// Finishes the values and writes them to a result of any float dtype.
    fn store(self, y: &mut ViewMut<'_>, finish: impl Fn(&mut [f32])) {
        if y.dtype() == DType::F32 {
            y.dense().copy_from_slice(self.slice());
            return finish(y.dense());
        }
        let mut values = Scratch::each(self.slice().len(), |i| self.slice()[i]);
        finish(&mut values);
        with_dtype!(y.dtype(), T => {
            y.dense::<T>().iter_mut().zip(&*values).for_each(|(y, &v)| *y = T::from_f64(f64::from(v)));
        });
    }
}

fn widen_into<T: Element>(x: View<'_>, to: &mut Buffer, convert: fn(&[T], &mut [f32])) {
    match x.dense::<T>() {
        Some(dense) => par_chunks_mut(to.as_mut_slice(), GRAIN, |start, y: &mut [f32]| {
            convert(&dense[start..start + y.len()], y);
        }),
        None => through::<f32, f32, 1>([x], &mut ViewMut::new(to, x.shape()), |[x], y| y.copy_from_slice(x)),
    }
}
