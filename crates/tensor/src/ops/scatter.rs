//! `scatter`: values written to given positions of one axis: the adjoint of `gather`, and more.

use thalweg_core::{Element, View, ViewMut, with_dtype};

use crate::error::{OpError, fail};
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
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
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

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        if matches!(self.combine, Combine::Mul | Combine::Max | Combine::Min) {
            return Grad::None("only sums and replacement have one so far");
        }
        let axis = self.axis as isize;
        let index = g.x(1);
        let dx = || match self.combine {
            Combine::Add => g.dy().clone(),
            _ => g.dy().scatter_value(axis, index, 0),
        };
        let ds = || {
            let at_index = g.dy().gather(axis, index);
            // Values beyond the index were not used.
            let unused = index.shape() != &g.meta(2).shape;
            if unused { at_index.placed_in(&g.meta(2).shape) } else { at_index }
        };
        Grad::Inputs(smallvec::smallvec![g.want(0, dx), None, g.want(2, ds)])
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        placing::eval(Self::NAME, self.axis, self.combine, [x[0], x[1], x[2]], y)
    }

    /// Dense f32 and f64 sums, and replacement of any dtype, where index and source have one shape
    /// that differs from the result's along the axis alone.
    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        fn typed<T: Element>(shape: [usize; 3], index: &[i64], source: &[T], y: &mut [T], f: impl Fn(&mut T, T)) {
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
        let alike = index.shape() == source.shape() && old.shape().without(self.axis) == index.shape().without(self.axis);
        if !alike || index.shape().contains(&0) || y.shape().contains(&0) {
            return false;
        }
        let Some(positions) = index.dense::<i64>().filter(|p| placing::all_inside(p, size)) else { return false };
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
            (Combine::Add, thalweg_core::DType::F32) => sum!(f32),
            (Combine::Add, thalweg_core::DType::F64) => sum!(f64),
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
        let mut samples = vec![
            // One value per line: no two meet.
            call(0, Combine::Set, &[4, 3], &[1, 3], &[1, 3]),
            call(1, Combine::Set, &[3, 5, 2], &[3, 1, 2], &[3, 1, 2]),
        ];
        samples.push(call(0, Combine::Add, &[4, 5], &[3, 4], &[3, 4]));
        samples.push(call(1, Combine::Add, &[4, 5], &[4, 7], &[4, 7]));
        samples.push(call(1, Combine::Add, &[2, 3, 4], &[2, 5, 4], &[2, 5, 4]));
        samples.push(call(0, Combine::Add, &[4, 3], &[3, 2], &[4, 3]));
        samples.push(call(0, Combine::Add, &[4, 3], &[0, 3], &[0, 3]));
        samples
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

    /// At the start of a larger tensor of zeros.
    #[track_caller]
    pub(crate) fn placed_in(&self, shape: &thalweg_core::Shape) -> Tensor {
        let strides = self.shape().iter().map(|&d| super::Stride::all(d)).collect();
        crate::apply::run(super::Embed { shape: shape.clone(), strides, fill: super::Number(0.0) }, &[self])
    }
}
