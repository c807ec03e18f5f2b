//! What cumulative ops have in common: a state that walks along one axis.

use std::borrow::Cow;

use smallvec::SmallVec;
use thalweg_core::{Element, Shape, View, ViewMut, with_dtype};
use thalweg_kernels::stream::split::par_chunks_mut;

use crate::apply::run;
use crate::error::{InOp, OpError};
use crate::meta::Meta;
use crate::ops::elementwise::{GRAIN, Wide};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{Embed, Number, Op, Stride};
use crate::tensor::Tensor;

/// The operand's meta, if it has the axis.
pub(crate) fn infer(op: &'static str, x: &Meta, axis: usize) -> Result<Meta, OpError> {
    x.shape.axis(axis as isize).in_op(op)?;
    if x.shape.rank() == 0 {
        return Err(OpError::Rank { op, want: "at least 1", shape: Shape::scalar() });
    }
    Ok(x.clone())
}

/// Walks along `axis`: `step` sees the state, the position and the elements of all operands there, and
/// gives the result's element. All operands have one dtype and the result's shape.
pub(crate) fn scan<W: Wide, V: Wide, S: Clone + Sync, const N: usize>(
    x: [View<'_>; N],
    axis: usize,
    y: &mut ViewMut<'_>,
    start: S,
    step: impl Fn(&mut S, usize, [W; N]) -> V + Sync,
) {
    let (_, n, inner) = y.shape().around(axis);
    let slab = n * inner;
    if y.shape().contains(&0) {
        return;
    }
    with_dtype!(x[0].dtype(), T => {
        let x = x.map(|x| dense_values::<T>(x));
        with_dtype!(y.dtype(), U => par_chunks_mut(y.dense::<U>(), (GRAIN / slab).max(1) * slab, |from, y| {
            for (slab_idx, y) in y.chunks_exact_mut(slab).enumerate() {
                let from = from + slab_idx * slab;
                let mut states = vec![start.clone(); inner];
                for (t, y) in y.chunks_exact_mut(inner).enumerate() {
                    for (i, (y, state)) in y.iter_mut().zip(&mut states).enumerate() {
                        let values = std::array::from_fn(|k| W::widen(x[k][from + t * inner + i]));
                        *y = step(state, t, values).narrow();
                    }
                }
            }
        }));
    });
}

fn dense_values<'a, T: Element>(x: View<'a>) -> Cow<'a, [T]> {
    match x.dense() {
        Some(dense) => Cow::Borrowed(dense),
        None => Cow::Owned(x.iter().collect()),
    }
}

/// The calls every cumulative op is tried on.
pub(crate) fn samples<O: Into<Op>>(
    op: impl Fn(usize) -> O,
    draw: impl Fn(Shape) -> Vec<Draw>,
) -> Vec<Sample> {
    let call = |shape: &[usize], axis: usize| Sample::new(op(axis), draw(shape.into()));
    vec![
        call(&[2, 3, 4], 0),
        call(&[2, 3, 4], 1),
        call(&[2, 3, 4], 2),
        call(&[5], 0),
        call(&[3, 1], 1),
        call(&[0, 3], 0),
        call(&[2, 0], 0),
    ]
}

impl Tensor {
    /// This tensor among `size` places along one axis, from `start` on; the other places hold `fill`.
    #[track_caller]
    pub(crate) fn placed(&self, axis: usize, size: usize, start: usize, fill: f64) -> Tensor {
        let mut strides: SmallVec<[Stride; 4]> = self.shape().iter().map(|&d| Stride::all(d)).collect();
        strides[axis].start = start;
        run(Embed { shape: self.shape().with(axis, size), strides, fill: Number(fill) }, &[self])
    }

    /// All but the last place of an axis.
    #[track_caller]
    pub(crate) fn but_last(&self, axis: usize) -> Tensor {
        self.narrow(axis as isize, 0, self.shape()[axis].saturating_sub(1))
    }

    /// All but the first place of an axis.
    #[track_caller]
    pub(crate) fn but_first(&self, axis: usize) -> Tensor {
        let n = self.shape()[axis];
        self.narrow(axis as isize, n.min(1), n.saturating_sub(1))
    }
}
