//! What cumulative ops have in common: a state that walks along one axis.

use smallvec::SmallVec;
use thalweg_core::{DType, Shape, View, ViewMut, with_dtype};
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
    // Converted on both sides, so that the walk is compiled once and not for each pair of dtypes.
    let x = x.map(widened::<W>);
    let mut result = vec![V::default(); y.shape().numel()];
    par_chunks_mut(&mut result, (GRAIN / slab).max(1) * slab, |from, y| {
        for (slab_idx, y) in y.chunks_exact_mut(slab).enumerate() {
            let from = from + slab_idx * slab;
            let at = |i: usize| std::array::from_fn(|k| x[k][from + i]);
            if inner == 1 {
                let mut state = start.clone();
                y.iter_mut().enumerate().for_each(|(t, y)| *y = step(&mut state, t, at(t)));
                continue;
            }
            let mut states = vec![start.clone(); inner];
            for (t, y) in y.chunks_exact_mut(inner).enumerate() {
                for (i, (y, state)) in y.iter_mut().zip(&mut states).enumerate() {
                    *y = step(state, t, at(t * inner + i));
                }
            }
        }
    });
    with_dtype!(y.dtype(), U => y.dense::<U>().iter_mut().zip(result).for_each(|(y, v)| *y = v.narrow()));
}

/// [`scan`] of dense f32 without the conversions to and fro; `false` for other operands.
pub(crate) fn fast_scan<const N: usize>(
    x: [View<'_>; N],
    axis: usize,
    y: &mut ViewMut<'_>,
    start: f64,
    step: impl Fn(&mut f64, usize, [f64; N]) -> f64 + Sync,
) -> bool {
    if y.dtype() != DType::F32 {
        return false;
    }
    let dense = x.map(|x| x.dense::<f32>());
    if dense.iter().any(Option::is_none) {
        return false;
    }
    let x = dense.map(|x| x.expect("checked just above"));
    let (_, n, inner) = y.shape().around(axis);
    let slab = n * inner;
    if slab == 0 {
        return true;
    }
    par_chunks_mut(y.dense::<f32>(), (GRAIN / slab).max(1) * slab, |from, y| {
        let mut states = vec![start; inner];
        for (slab_idx, y) in y.chunks_exact_mut(slab).enumerate() {
            let x = x.map(|x| &x[from + slab_idx * slab..][..slab]);
            if inner == 1 {
                let mut state = start;
                for (t, y) in y.iter_mut().enumerate() {
                    *y = step(&mut state, t, x.map(|x| f64::from(x[t]))) as f32;
                }
                continue;
            }
            states.fill(start);
            for (t, y) in y.chunks_exact_mut(inner).enumerate() {
                let x = x.map(|x| &x[t * inner..][..inner]);
                for (i, (y, state)) in y.iter_mut().zip(&mut states).enumerate() {
                    *y = step(state, t, x.map(|x| f64::from(x[i]))) as f32;
                }
            }
        }
    });
    true
}

fn widened<W: Wide>(x: View<'_>) -> Vec<W> {
    with_dtype!(x.dtype(), T => match x.dense::<T>() {
        Some(dense) => dense.iter().map(|&v| W::widen(v)).collect(),
        None => x.iter::<T>().map(W::widen).collect(),
    })
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
