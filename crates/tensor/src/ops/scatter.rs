//! `scatter`: values written to given positions of one axis: the adjoint of `gather`, and more.

use thalweg_core::{DType, Element, View, ViewMut, with_dtype};

use crate::apply::run;
use crate::error::{InOp, OpError, fail, or_fail};
use crate::meta::{Meta, arity};
use crate::ops::copy;
use crate::ops::placing::{self, Combine};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::scalar::Scalar;
use crate::tensor::Tensor;

/// Values written to given positions of one axis.
///
/// Operands: what is written into, an i64 index of the same rank, and the values, at least as large
/// as the index. For axis 1, `x[i, index[i, j, k], k]` meets `source[i, j, k]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Scatter {
    /// The axis that the index counts along.
    pub axis: usize,
    /// What happens where a value is written.
    pub combine: Combine,
}

impl Primitive for Scatter {
    const NAME: &'static str = "scatter";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        placing::infer(Self::NAME, self.axis, arity(Self::NAME, x)?)
    }

    fn keep(&self) -> Keep {
        let always = Keep::METAS.and(Keep::input(1));
        match self.combine {
            Combine::Set | Combine::Add => always,
            Combine::Mul => always.and(Keep::input(0)).and(Keep::input(2)),
            Combine::Max | Combine::Min => always.and(Keep::input(0)).and(Keep::input(2)).and(Keep::OUTPUT),
        }
    }

    /// As a sum, dx is dy and each value's gradient is dy where it went. A value that was replaced by
    /// a later one gets none, nor does what stood there before.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (axis, index, dy) = (self.axis as isize, g.x(1), g.dy());
        let picked = || dy.gather(axis, index);
        let (dx, ds) = match self.combine {
            Combine::Add => (g.want(0, || dy.clone()), g.want(2, picked)),
            Combine::Set => {
                let last = || {
                    if index.shape()[self.axis] < 2 {
                        return picked();
                    }
                    let turn = Tensor::arange(index.numel()).reshape(index.shape());
                    let winner = Tensor::zeros(dy.shape(), DType::I64).scatter(axis, index, &turn);
                    winner.gather(axis, index).eq(&turn).where_(&picked(), 0)
                };
                (g.want(0, || dy.scatter_value(axis, index, 0)), g.want(2, last))
            }
            Combine::Mul | Combine::Max | Combine::Min => {
                return placing::grad(self.axis, self.combine, index, g);
            }
        };
        // Values beyond the index were not used.
        Grad::Inputs(smallvec::smallvec![dx, None, ds.map(|ds| ds.placed_in(&g.meta(2).shape))])
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        placing::eval(Self::NAME, self.axis, self.combine, [x[0], x[1], x[2]], y)
    }

    /// Dense f32 and f64 sums, and replacement of any dtype, where index and source have one shape
    /// that differs from the result's along the axis alone.
    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        fn typed<T: Element>(
            shape: [usize; 3],
            index: &[i64],
            source: &[T],
            y: &mut [T],
            f: impl Fn(&mut T, T),
        ) {
            let [n, size, inner] = shape;
            let rows = index.chunks_exact(n * inner).zip(source.chunks_exact(n * inner));
            for (y, (index, source)) in y.chunks_exact_mut(size * inner).zip(rows) {
                for (index, source) in index.chunks_exact(inner).zip(source.chunks_exact(inner)) {
                    for (k, (&i, &v)) in index.iter().zip(source).enumerate() {
                        f(&mut y[i as usize * inner + k], v);
                    }
                }
            }
        }
        let [old, index, source] = *x else { return false };
        let (_, size, inner) = old.shape().around(self.axis);
        let alike = index.shape() == source.shape()
            && old.shape().without(self.axis) == index.shape().without(self.axis);
        if !alike || index.shape().contains(&0) || y.shape().contains(&0) {
            return false;
        }
        let Some(positions) = index.dense::<i64>().filter(|p| placing::all_inside(p, size)) else {
            return false;
        };
        let shape = [index.shape()[self.axis], size, inner];
        macro_rules! sum {
            ($T:ty) => {{
                let Some(values) = source.dense::<$T>() else { return false };
                copy::into_dense(old, y);
                typed(shape, positions, values, y.dense::<$T>(), |y, v| *y += v);
            }};
        }
        match (self.combine, y.dtype()) {
            (Combine::Set, dtype) => with_dtype!(dtype, T => {
                let Some(values) = source.dense::<T>() else { return false };
                copy::into_dense(old, y);
                typed(shape, positions, values, y.dense::<T>(), |y, v| *y = v);
            }),
            (Combine::Add, DType::F32) => sum!(f32),
            (Combine::Add, DType::F64) => sum!(f64),
            _ => return false,
        }
        true
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: x[1].numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |axis: usize, combine, x: &[usize], index: &[usize], source: &[usize]| {
            let index = Draw::int(index, 0, x[axis] as i64);
            Sample::new(Scatter { axis, combine }, [Draw::distinct(x), index, Draw::any(source)])
        };
        vec![
            call(0, Combine::Set, &[4, 3], &[1, 3], &[1, 3]),
            call(0, Combine::Set, &[4, 3], &[6, 2], &[7, 2]),
            call(1, Combine::Set, &[3, 5, 2], &[3, 4, 2], &[3, 4, 2]),
            call(0, Combine::Add, &[4, 5], &[3, 4], &[3, 4]),
            call(1, Combine::Add, &[4, 5], &[4, 7], &[4, 7]),
            call(1, Combine::Add, &[2, 3, 4], &[2, 5, 4], &[2, 5, 4]),
            call(0, Combine::Add, &[4, 3], &[3, 2], &[4, 3]),
            call(0, Combine::Add, &[4, 3], &[0, 3], &[0, 3]),
            call(1, Combine::Mul, &[2, 3, 2], &[2, 4, 2], &[2, 4, 2]),
            call(0, Combine::Mul, &[4, 3], &[3, 2], &[4, 3]),
            call(1, Combine::Max, &[3, 4], &[3, 7], &[3, 7]),
            call(0, Combine::Min, &[4, 3], &[5, 3], &[5, 3]),
        ]
    }
}

impl Tensor {
    /// A copy with `source` written to given positions of one axis: for axis 1,
    /// `y[i, index[i, j]] = source[i, j]`. Where an index repeats along the axis, the last value in
    /// row-major order stays.
    #[track_caller]
    pub fn scatter(&self, axis: isize, index: &Tensor, source: &Tensor) -> Tensor {
        self.combine_at(axis, index, source, Combine::Set)
    }

    /// A copy with one number written to given positions of one axis.
    #[track_caller]
    pub fn scatter_value(&self, axis: isize, index: &Tensor, value: impl Into<Scalar>) -> Tensor {
        let value = value.into();
        if value.dtype_with(self.dtype()) != self.dtype() {
            fail(OpError::DTypes { op: Scatter::NAME, left: self.dtype(), right: value.dtype() });
        }
        self.combine_at(axis, index, &value.spread(self.dtype(), index.shape()), Combine::Set)
    }

    /// A copy with `source` added at given positions of one axis: for axis 1,
    /// `y[i, index[i, j]] += source[i, j]`. Repeated positions add up.
    #[track_caller]
    pub fn scatter_add(&self, axis: isize, index: &Tensor, source: &Tensor) -> Tensor {
        self.combine_at(axis, index, source, Combine::Add)
    }

    /// [`Tensor::scatter_reduce`] without the options.
    #[track_caller]
    pub(crate) fn combine_at(
        &self,
        axis: isize,
        index: &Tensor,
        source: &Tensor,
        combine: Combine,
    ) -> Tensor {
        if self.rank() == 0 && index.rank() == 0 {
            let y = self.reshape(1).combine_at(axis, &index.reshape(1), &source.reshape(1), combine);
            return y.reshape(());
        }
        let axis = or_fail(self.shape().axis(axis).in_op(Scatter::NAME));
        run(Scatter { axis, combine }, &[self, &index.as_index(), source])
    }

    /// At the start of a larger tensor of zeros.
    #[track_caller]
    pub(crate) fn placed_in(&self, shape: &thalweg_core::Shape) -> Tensor {
        if self.shape() == shape {
            return self.clone();
        }
        let strides = self.shape().iter().map(|&d| super::Stride::all(d)).collect();
        run(super::Embed { shape: shape.clone(), strides, fill: super::Number(0.0) }, &[self])
    }
}
