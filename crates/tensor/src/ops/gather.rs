//! `gather`: along one axis, the elements at given positions; the other coordinates stay.

use thalweg_core::{Element, View, ViewMut, with_dtype};
use thalweg_kernels::stream::split::par_chunks_mut;

use crate::apply::run;
use crate::error::{InOp, OpError, or_fail};
use crate::meta::{Meta, arity, require_index};
use crate::ops::elementwise::GRAIN;
use crate::ops::placing;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// Elements at given positions of one axis.
///
/// Operands: the source, and an i64 index of the same rank, no larger than the source along the
/// other axes. `y[i, j, k] = x[i, index[i, j, k], k]` for axis 1.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Gather {
    /// The axis that the index counts along.
    pub axis: usize,
}

impl Primitive for Gather {
    const NAME: &'static str = "gather";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x, index] = arity(Self::NAME, x)?;
        require_index(Self::NAME, index)?;
        placing::require_inside(Self::NAME, self.axis, &x.shape, &index.shape)?;
        Ok(x.with_shape(&index.shape))
    }

    fn keep(&self) -> Keep {
        Keep::METAS.and(Keep::input(1))
    }

    /// dx collects dy where it was read; what was read twice adds up.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let dx = g.want(0, || Tensor::zeros_of(g.meta(0)).scatter_add(self.axis as isize, g.x(1), g.dy()));
        Grad::Inputs(smallvec::smallvec![dx, None])
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        fn typed<T: Element>(axis: usize, x: View<'_>, index: View<'_>, y: &mut [T]) -> Result<(), OpError> {
            let (memory, size, stride) = (x.memory::<T>(), x.shape()[axis], x.layout().strides()[axis]);
            let Some(lines) = placing::lines(Gather::NAME, x.layout(), axis, index)? else { return Ok(()) };
            for ((y, line), i) in y.iter_mut().zip(lines.positions()).zip(index.iter::<i64>()) {
                let i = placing::checked(Gather::NAME, i, size)?;
                *y = memory[(line as isize + i as isize * stride) as usize];
            }
            Ok(())
        }
        with_dtype!(y.dtype(), T => typed::<T>(self.axis, x[0], x[1], y.dense()))
    }

    /// Dense operands that differ along the axis alone: a task per stretch of the result.
    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        fn typed<T: Element>(x: &[T], size: usize, index: &[i64], n: usize, inner: usize, y: &mut [T]) {
            let rows = (GRAIN / (n * inner)).max(1);
            par_chunks_mut(y, rows * n * inner, |start, y| {
                let index = &index[start..start + y.len()];
                for (o, (y, index)) in
                    y.chunks_exact_mut(n * inner).zip(index.chunks_exact(n * inner)).enumerate()
                {
                    let x = &x[(start / (n * inner) + o) * size * inner..][..size * inner];
                    if inner == 1 {
                        y.iter_mut().zip(index).for_each(|(y, &i)| *y = x[i as usize]);
                        continue;
                    }
                    for (y, index) in y.chunks_exact_mut(inner).zip(index.chunks_exact(inner)) {
                        y.iter_mut()
                            .zip(index)
                            .enumerate()
                            .for_each(|(k, (y, &i))| *y = x[i as usize * inner + k]);
                    }
                }
            });
        }
        let [source, index] = x else { return false };
        let (_, size, inner) = source.shape().around(self.axis);
        if source.shape().without(self.axis) != index.shape().without(self.axis) || y.shape().contains(&0) {
            return false;
        }
        let Some(positions) = index.dense::<i64>() else { return false };
        if !source.layout().is_contiguous() || !placing::all_inside(positions, size) {
            return false;
        }
        let n = index.shape()[self.axis];
        with_dtype!(y.dtype(), T => {
            let Some(source) = source.dense::<T>() else { return false };
            typed::<T>(source, size, positions, n, inner, y.dense());
        });
        true
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        // Only what is read of the source moves.
        Cost { flops: 0, bytes: (x[1].bytes() + 2 * y.bytes()) as u64 }
    }

    fn samples() -> Vec<Sample> {
        let call = |axis: usize, x: &[usize], index: &[usize]| {
            Sample::new(Gather { axis }, [Draw::any(x), Draw::int(index, 0, x[axis] as i64)])
        };
        vec![
            call(0, &[4, 5], &[3, 4]),
            call(1, &[4, 5], &[4, 7]),
            call(1, &[2, 3, 4], &[2, 5, 4]),
            call(1, &[3, 4], &[3, 0]),
            call(0, &[1], &[3]),
            Sample::new(Gather { axis: 0 }, [Draw::distinct([9]), Draw::int([40], 0, 9)]),
        ]
    }
}

impl Tensor {
    /// Elements at given positions of one axis: `y[i, j] = x[i, index[i, j]]` for axis 1. The index
    /// has this tensor's rank, may be shorter along other axes, and counts from the front.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let x = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]);
    /// let y = x.gather(1, &Tensor::from([[1i64], [0]]));
    /// assert_eq!(y.to_vec::<f32>(), [2.0, 3.0]);
    /// ```
    #[track_caller]
    pub fn gather(&self, axis: isize, index: &Tensor) -> Tensor {
        if self.rank() == 0 && index.rank() == 0 {
            return self.reshape(1).gather(axis, &index.reshape(1)).reshape(());
        }
        let axis = or_fail(self.shape().axis(axis).in_op(Gather::NAME));
        run(Gather { axis }, &[self, &index.as_index()])
    }

    /// Zeros of a known dtype and shape, one number in memory.
    pub(crate) fn zeros_of(meta: &Meta) -> Tensor {
        crate::scalar::Scalar::Int(0).spread(meta.dtype, &meta.shape)
    }

    /// Smaller integers as i64; everything else as it is, for the op to refuse.
    #[track_caller]
    pub(crate) fn as_index(&self) -> Tensor {
        if self.dtype().is_int() { self.to_dtype(thalweg_core::DType::I64) } else { self.clone() }
    }
}
