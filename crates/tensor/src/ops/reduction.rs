//! What reductions over several axes have in common.

use smallvec::SmallVec;
use thalweg_core::{Buffer, DType, Element, Layout, Shape, View, ViewMut, with_dtype};

use crate::error::OpError;
use crate::meta::Meta;
use crate::ops::Op;
use crate::ops::elementwise::{Wide, blocks, through};
use crate::ops::sample::{Draw, Sample};

/// A list of axes.
pub(crate) type AxisList = SmallVec<[usize; 4]>;

/// The result of dropping `axes`, which must be ascending.
pub(crate) fn infer(op: &'static str, x: &Meta, axes: &[usize]) -> Result<Meta, OpError> {
    let ascending = axes.windows(2).all(|w| w[0] < w[1]) && axes.last().is_none_or(|&a| a < x.shape.rank());
    if !ascending {
        return Err(OpError::Argument {
            op,
            name: "axes",
            value: format!("{axes:?}"),
            shape: x.shape.clone(),
            need: "axes must be ascending and inside the shape",
        });
    }
    Ok(x.with_shape(dropped(&x.shape, axes)))
}

/// The shape without `axes`.
pub(crate) fn dropped(shape: &Shape, axes: &[usize]) -> Shape {
    (0..shape.rank()).filter(|i| !axes.contains(i)).map(|i| shape[i]).collect()
}

/// The shape with `axes` at size 1.
pub(crate) fn kept(shape: &Shape, axes: &[usize]) -> Shape {
    shape.iter().enumerate().map(|(i, &d)| if axes.contains(&i) { 1 } else { d }).collect()
}

/// The operand's layout with the reduced axes last, and the number of elements they hold: each
/// result element is then one straight stretch of positions.
pub(crate) fn reduced_last(layout: &Layout, axes: &[usize]) -> (Layout, usize) {
    let order: AxisList =
        (0..layout.shape().rank()).filter(|i| !axes.contains(i)).chain(axes.iter().copied()).collect();
    (layout.permute(&order), count(layout.shape(), axes))
}

/// The reference reduction: a left fold in row-major order in the type `W`.
pub(crate) fn fold<W: Wide>(
    x: View<'_>,
    axes: &[usize],
    y: &mut ViewMut<'_>,
    init: W,
    f: impl Fn(W, W) -> W,
) {
    by_rows(x, axes, y, |row: &[W]| row.iter().fold(init, |acc, &v| f(acc, v)));
}

/// Any reduction: `f` gets the elements that make one result, in row-major order.
pub(crate) fn by_rows<W: Wide, V: Wide>(
    x: View<'_>,
    axes: &[usize],
    y: &mut ViewMut<'_>,
    f: impl Fn(&[W]) -> V,
) {
    rows_dyn(x, axes, y, &f);
}

/// One instance for all reductions; only the two conversions know dtypes.
fn rows_dyn<W: Wide, V: Wide>(x: View<'_>, axes: &[usize], y: &mut ViewMut<'_>, f: &dyn Fn(&[W]) -> V) {
    let (layout, n) = reduced_last(x.layout(), axes);
    let mut results: Vec<V> = Vec::with_capacity(y.shape().numel());
    let mut row = vec![W::default(); n];
    with_dtype!(x.dtype(), T => {
        let memory = x.memory::<T>();
        let mut positions = layout.positions();
        for _ in 0..y.shape().numel() {
            row.iter_mut().zip(positions.by_ref()).for_each(|(v, p)| *v = W::widen(memory[p]));
            results.push(f(&row));
        }
    });
    with_dtype!(y.dtype(), U => y.dense::<U>().iter_mut().zip(results).for_each(|(y, v)| *y = v.narrow()));
}

/// How many elements make one result.
pub(crate) fn count(shape: &Shape, axes: &[usize]) -> usize {
    axes.iter().map(|&a| shape[a]).product()
}

/// A reduction over a middle axis: x: (outer, axis, inner) to y: (outer, inner).
pub(crate) type AxisKernel = fn(&[f32], [usize; 3], &mut [f32]);

/// Reduces f32, f16 and bf16 of any layout by a kernel over middle axes, one stretch of neighbouring
/// axes after the other, and lets `finish` work on the result before it is rounded to half precision.
pub(crate) fn fast_axes(
    x: View<'_>,
    axes: &[usize],
    y: &mut ViewMut<'_>,
    kernel: AxisKernel,
    finish: impl Fn(&mut [f32]),
) -> bool {
    let order = memory_order(x.layout(), axes);
    let layout = x.layout().permute(&order);
    let Some(values) = Singles::of(x.with_layout(&layout)) else { return false };
    // (size, whether it is reduced), outermost first, neighbours of one kind merged.
    let mut groups: SmallVec<[(usize, bool); 4]> = SmallVec::new();
    for &axis in &order {
        let (size, reduced) = (x.shape()[axis], axes.contains(&axis));
        match groups.last_mut() {
            Some((n, kind)) if *kind == reduced => *n *= size,
            _ => groups.push((size, reduced)),
        }
    }
    let mut current = values;
    while let Some(at) = groups.iter().rposition(|g| g.1) {
        let product = |groups: &[(usize, bool)]| groups.iter().map(|g| g.0).product::<usize>();
        let sizes = [product(&groups[..at]), groups[at].0, product(&groups[at + 1..])];
        groups.remove(at);
        if y.dtype() == DType::F32 && !groups.iter().any(|g| g.1) {
            kernel(current.slice(), sizes, y.dense());
            finish(y.dense());
            return true;
        }
        let mut next = Buffer::scratch(DType::F32, sizes[0] * sizes[2]);
        kernel(current.slice(), sizes, next.as_mut_slice());
        current = Singles::Own(next);
    }
    current.store(y, finish);
    true
}

/// Reduces f32, f16 and bf16 of any layout by a kernel over rows, x: (rows, cols) to y: (rows).
pub(crate) fn fast_rows(
    x: View<'_>,
    axes: &[usize],
    y: &mut ViewMut<'_>,
    kernel: impl Fn(&[f32], usize, &mut [f32]),
) -> bool {
    with_rows(x, axes, |x, cols| {
        if y.dtype() == DType::F32 {
            return kernel(x, cols, y.dense());
        }
        let mut rows = Buffer::scratch(DType::F32, y.shape().numel());
        kernel(x, cols, rows.as_mut_slice());
        Singles::Own(rows).store(y, |_| {});
    })
}

/// Calls `f(values, cols)` with the elements as dense f32, the reduced axes last: (rows, cols).
/// `false`, and no call, for dtypes that f32 does not hold exactly.
pub(crate) fn with_rows(x: View<'_>, axes: &[usize], f: impl FnOnce(&[f32], usize)) -> bool {
    let (layout, cols) = reduced_last(x.layout(), axes);
    let values = Singles::of(x.with_layout(&layout));
    let covered = values.is_some();
    if let Some(values) = values {
        f(values.slice(), cols);
    }
    covered
}

/// The axes in an order in which the elements lie straight in memory, if that leaves the axes that
/// stay in their order; else the order they have.
fn memory_order(layout: &Layout, axes: &[usize]) -> AxisList {
    let rank = layout.shape().rank();
    let natural: AxisList = (0..rank).collect();
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
            DType::F16 | DType::BF16 => {
                through::<f32, f32, 1>([x], &mut ViewMut::new(&mut copy, x.shape()), |[x], y| {
                    y.copy_from_slice(x);
                });
            }
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
        let mut values = self.slice().to_vec();
        finish(&mut values);
        with_dtype!(y.dtype(), T => {
            y.dense::<T>().iter_mut().zip(&values).for_each(|(y, &v)| *y = T::from_f64(f64::from(v)));
        });
    }
}

/// The calls every reduction over axes is tried on.
pub(crate) fn samples<O: Into<Op>>(op: impl Fn(AxisList) -> O, draw: impl Fn(Shape) -> Draw) -> Vec<Sample> {
    let call = |shape: &[usize], axes: &[usize]| Sample::new(op(axes.into()), [draw(shape.into())]);
    vec![
        call(&[2, 3, 4], &[0, 1, 2]),
        call(&[2, 3, 4], &[1]),
        call(&[2, 3, 4], &[0, 2]),
        call(&[3, 1, 2], &[1]),
        call(&[3, 0], &[0]),
        call(&[2, 37], &[1]),
        call(&[19, 3], &[0]),
        call(&[], &[]),
    ]
}
