//! `index_select`: whole slices at given positions of one axis.

use thalweg_core::{Element, View, ViewMut, with_dtype};
use thalweg_kernels::stream::split::par_chunks_mut;

use crate::apply::run;
use crate::error::{InOp, OpError, or_fail};
use crate::meta::{Meta, arity, require_index};
use crate::ops::elementwise::GRAIN;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{copy, placing};
use crate::tensor::Tensor;

/// Whole slices at given positions of one axis. Operands: the source, and an i64 vector.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct IndexSelect {
    /// The axis that the index counts along.
    pub axis: usize,
}

impl Primitive for IndexSelect {
    const NAME: &'static str = "index_select";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x, index] = arity(Self::NAME, x)?;
        require_index(Self::NAME, index)?;
        let [n] = index.shape[..] else {
            return Err(OpError::Rank {
                op: Self::NAME,
                want: "1 for the index",
                shape: index.shape.clone(),
            });
        };
        if self.axis >= x.shape.rank() {
            return Err(OpError::Rank { op: Self::NAME, want: "more", shape: x.shape.clone() });
        }
        Ok(x.with_shape(x.shape.with(self.axis, n)))
    }

    fn keep(&self) -> Keep {
        Keep::METAS.and(Keep::input(1))
    }

    /// dx collects dy where it was read; slices that were read twice add up.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let dx = || Tensor::zeros_of(g.meta(0)).index_add(self.axis as isize, g.x(1), g.dy());
        Grad::Inputs(smallvec::smallvec![g.want(0, dx), None])
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        fn typed<T: Element>(axis: usize, x: View<'_>, positions: &[usize], y: &mut ViewMut<'_>) {
            let (_, n, inner) = y.shape().around(axis);
            let (memory, y) = (x.memory::<T>(), y.dense::<T>());
            for (j, &i) in positions.iter().enumerate() {
                let slice = x.layout().select(axis, i);
                for (k, from) in slice.positions().enumerate() {
                    y[(k / inner * n + j) * inner + k % inner] = memory[from];
                }
            }
        }
        let positions = placing::positions(Self::NAME, x[1], x[0].shape()[self.axis])?;
        if !y.shape().contains(&0) {
            with_dtype!(y.dtype(), T => typed::<T>(self.axis, x[0], &positions, y));
        }
        Ok(())
    }

    /// Copies straight pieces.
    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        fn typed<T: Element>(x: &[T], size: usize, index: &[i64], inner: usize, y: &mut [T]) {
            let n = index.len();
            let rows = (GRAIN / inner).max(1);
            par_chunks_mut(y, rows * inner, |start, y| {
                let first = start / inner;
                let from = |r: usize| (r / n * size + index[r % n] as usize) * inner;
                if inner == 1 {
                    y.iter_mut().enumerate().for_each(|(r, y)| *y = x[from(first + r)]);
                } else {
                    let rows = y.chunks_exact_mut(inner).enumerate();
                    rows.for_each(|(r, y)| y.copy_from_slice(&x[from(first + r)..][..inner]));
                }
            });
        }
        let (_, size, inner) = x[0].shape().around(self.axis);
        let Some(index) = x[1].dense::<i64>() else { return false };
        // What is out of range is for `eval` to refuse.
        if index.iter().any(|&i| !(0..size as i64).contains(&i)) {
            return false;
        }
        if y.shape().contains(&0) {
            return true;
        }
        // A view that has to be copied first should not be much larger than what is read of it.
        if !x[0].layout().is_contiguous() && x[0].shape().numel() > 8 * y.shape().numel() {
            return false;
        }
        with_dtype!(y.dtype(), T => {
            copy::with_dense(x[0], |source: &[T]| typed::<T>(source, size, index, inner, y.dense()));
        });
        true
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 0, bytes: (x[1].bytes() + 2 * y.bytes()) as u64 }
    }

    fn samples() -> Vec<Sample> {
        let call = |axis: usize, x: &[usize], n: usize| {
            Sample::new(IndexSelect { axis }, [Draw::any(x), Draw::int([n], 0, x[axis] as i64)])
        };
        vec![
            call(0, &[4, 5, 3], 6),
            call(1, &[4, 5, 3], 3),
            call(2, &[4, 5, 3], 7),
            call(0, &[3, 4], 0),
            call(0, &[2, 0], 3),
            call(0, &[1], 1),
        ]
    }
}

impl Tensor {
    /// Whole slices at the positions that a vector of indices names, counted from the front.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let x = Tensor::from([[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]]);
    /// let y = x.index_select(0, &Tensor::from([2i64, 0]));
    /// assert_eq!(y.to_vec::<f32>(), [5.0, 6.0, 1.0, 2.0]);
    /// ```
    #[track_caller]
    pub fn index_select(&self, axis: isize, index: &Tensor) -> Tensor {
        let axis = or_fail(self.shape().axis(axis).in_op(IndexSelect::NAME));
        let index = index.as_index();
        // A single position selects as a vector of one does, and a scalar counts as one of them.
        let index = if index.rank() == 0 { index.reshape(1) } else { index };
        match self.rank() {
            0 => run(IndexSelect { axis }, &[&self.reshape(1), &index]).reshape(()),
            _ => run(IndexSelect { axis }, &[self, &index]),
        }
    }
}
