//! What reductions over several axes have in common.

use smallvec::SmallVec;
use thalweg_core::{Layout, Shape, View, ViewMut, with_dtype};

use crate::error::OpError;
use crate::meta::Meta;
use crate::ops::Op;
use crate::ops::elementwise::Wide;
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

/// How many elements make one result, if they stand in a row: the last axes disappear, and no others.
pub(crate) fn row(shape: &Shape, axes: &[usize]) -> Option<usize> {
    axes.iter().copied().eq(shape.rank() - axes.len()..shape.rank()).then(|| count(shape, axes))
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
        let (mut positions, mut straight) = (layout.positions(), x.with_layout(&layout).dense::<T>());
        for _ in 0..y.shape().numel() {
            match &mut straight {
                Some(values) => {
                    let (here, after) = values.split_at(n);
                    row.iter_mut().zip(here).for_each(|(v, &x)| *v = W::widen(x));
                    *values = after;
                }
                None => row.iter_mut().zip(positions.by_ref()).for_each(|(v, p)| *v = W::widen(memory[p])),
            }
            results.push(f(&row));
        }
    });
    with_dtype!(y.dtype(), U => y.dense::<U>().iter_mut().zip(results).for_each(|(y, v)| *y = v.narrow()));
}

/// How many elements make one result.
pub(crate) fn count(shape: &Shape, axes: &[usize]) -> usize {
    axes.iter().map(|&a| shape[a]).product()
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
