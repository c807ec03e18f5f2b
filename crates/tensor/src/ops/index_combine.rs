//! `index_combine`: whole slices written to given positions of one axis: the adjoint of
//! `index_select`, and more.

use thalweg_core::{DType, Element, Layout, Shape, View, ViewMut, with_dtype};
use thalweg_kernels::stream::arithmetic::add_assign;
use thalweg_kernels::stream::split::par_chunks_mut;

use crate::apply::run;
use crate::error::{InOp, OpError, or_fail};
use crate::meta::{Meta, arity, require_index, require_same_dtype};
use crate::ops::elementwise::GRAIN;
use crate::ops::placing::{self, Combine};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{Scatter, copy};
use crate::scalar::Scalar;
use crate::tensor::Tensor;

/// Whole slices written to given positions of one axis. Operands: what is written into, an i64
/// vector, and the slices, one per index.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct IndexCombine {
    /// The axis that the index counts along.
    pub axis: usize,
    /// What happens where a value is written.
    pub combine: Combine,
}

impl Primitive for IndexCombine {
    const NAME: &'static str = "index_combine";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x, index, source] = arity(Self::NAME, x)?;
        require_index(Self::NAME, index)?;
        require_same_dtype(Self::NAME, x, source)?;
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
        if source.shape != x.shape.with(self.axis, n) {
            let hint = "the source needs the operand's sizes, and along the axis one slice per index";
            let (left, right) = (x.shape.clone(), source.shape.clone());
            return Err(OpError::Shapes { op: Self::NAME, left, right, hint });
        }
        Ok(x.clone())
    }

    fn keep(&self) -> Keep {
        Scatter { axis: self.axis, combine: self.combine }.keep()
    }

    /// The rules of `scatter`; sums and replacement stay with whole slices.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (axis, index, dy) = (self.axis as isize, g.x(1), g.dy());
        let picked = || dy.index_select(axis, index);
        let column = |t: &Tensor| {
            t.reshape(
                g.meta(2)
                    .shape
                    .iter()
                    .enumerate()
                    .map(|(i, _)| if i == self.axis { index.numel() } else { 1 })
                    .collect::<Shape>(),
            )
        };
        let (dx, ds) = match self.combine {
            Combine::Add => (g.want(0, || dy.clone()), g.want(2, picked)),
            Combine::Set => {
                let last = || {
                    if index.numel() < 2 {
                        return picked();
                    }
                    let turn = Tensor::arange(index.numel());
                    let winner =
                        Tensor::zeros(g.meta(0).shape[self.axis], DType::I64).index_copy(0, index, &turn);
                    column(&winner.index_select(0, index).eq(&turn)).where_(&picked(), 0)
                };
                (g.want(0, || dy.index_fill(axis, index, 0)), g.want(2, last))
            }
            Combine::Mul | Combine::Max | Combine::Min => {
                let spread = column(index).broadcast_to(&g.meta(2).shape);
                return placing::grad(self.axis, self.combine, &spread, g);
            }
        };
        Grad::Inputs(smallvec::smallvec![dx, None, ds])
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let shape = x[2].shape();
        let n = shape[self.axis];
        let positions: Vec<i64> = x[1].iter().collect();
        for &i in &positions {
            placing::checked(Self::NAME, i, y.shape()[self.axis])?;
        }
        let buffer = thalweg_core::Buffer::from_slice(&positions);
        let mut column: Shape = shape.iter().map(|_| 1).collect();
        column.dims_mut()[self.axis] = n;
        let spread = Layout::contiguous(column).broadcast_to(shape).in_op(Self::NAME)?;
        placing::eval(Self::NAME, self.axis, self.combine, [x[0], View::new(&buffer, &spread), x[2]], y)
    }

    /// Sums in f32 and f64, and replacement of any dtype: each task owns some positions of the
    /// axis and walks all indices in order, so the result does not depend on the number of tasks.
    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        fn typed<T: Element>(
            positions: &[usize],
            source: &[T],
            [size, inner]: [usize; 2],
            y: &mut [T],
            f: impl Fn(&mut [T], &[T]) + Sync,
        ) {
            let n = positions.len();
            let tasks = (y.len().max(source.len()) / GRAIN).clamp(1, 8);
            let rows = (y.len() / inner).div_ceil(tasks);
            par_chunks_mut(y, rows * inner, |start, y| {
                let (first, end) = (start / inner, (start + y.len()) / inner);
                for o in first / size..end.div_ceil(size) {
                    for (j, &i) in positions.iter().enumerate() {
                        let row = o * size + i;
                        if (first..end).contains(&row) {
                            f(
                                &mut y[(row - first) * inner..][..inner],
                                &source[(o * n + j) * inner..][..inner],
                            );
                        }
                    }
                }
            });
        }
        let (_, size, inner) = y.shape().around(self.axis);
        let Ok(positions) = placing::positions(Self::NAME, x[1], size) else { return false };
        if x[2].shape().contains(&0) || y.shape().contains(&0) {
            return false;
        }
        macro_rules! rows {
            ($T:ty, $f:expr) => {{
                copy::into_dense(x[0], y);
                copy::with_dense(x[2], |source: &[$T]| {
                    typed(&positions, source, [size, inner], y.dense::<$T>(), $f);
                });
            }};
        }
        match (self.combine, y.dtype()) {
            (Combine::Add, DType::F32) => rows!(f32, add_assign),
            (Combine::Add, DType::F64) => rows!(f64, add_assign),
            (Combine::Set, dtype) => {
                with_dtype!(dtype, T => rows!(T, |y: &mut [T], v: &[T]| y.copy_from_slice(v)))
            }
            _ => return false,
        }
        true
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: x[2].numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |axis: usize, combine, x: &[usize], n: usize| {
            let source = Shape::from(x).with(axis, n);
            let index = Draw::int([n], 0, x[axis] as i64);
            Sample::new(IndexCombine { axis, combine }, [Draw::distinct(x), index, Draw::any(source)])
        };
        vec![
            call(0, Combine::Add, &[4, 3], 6),
            call(1, Combine::Add, &[2, 4, 3], 5),
            call(2, Combine::Add, &[2, 2, 4], 5),
            call(0, Combine::Add, &[3, 2], 0),
            call(0, Combine::Set, &[4, 3], 1),
            call(1, Combine::Set, &[2, 3, 2], 5),
            call(0, Combine::Mul, &[3, 2], 4),
            call(1, Combine::Max, &[2, 3, 2], 4),
            call(0, Combine::Min, &[3], 5),
        ]
    }
}

impl Tensor {
    /// A copy with slices added at given positions of one axis; repeated positions add up.
    #[track_caller]
    pub fn index_add(&self, axis: isize, index: &Tensor, source: &Tensor) -> Tensor {
        self.index_combine("index_add", axis, index, source, Combine::Add)
    }

    /// A copy with slices written to given positions of one axis; of repeated positions the last
    /// stays.
    #[track_caller]
    pub fn index_copy(&self, axis: isize, index: &Tensor, source: &Tensor) -> Tensor {
        self.index_combine("index_copy", axis, index, source, Combine::Set)
    }

    /// A copy with one number in the slices at given positions of one axis.
    #[track_caller]
    pub fn index_fill(&self, axis: isize, index: &Tensor, value: impl Into<Scalar>) -> Tensor {
        let value = value.into();
        if value.dtype_with(self.dtype()) != self.dtype() {
            crate::error::fail(OpError::DTypes {
                op: "index_fill",
                left: self.dtype(),
                right: value.dtype(),
            });
        }
        let at = or_fail(self.shape().axis(axis).in_op("index_fill"));
        let shape = if self.rank() == 0 { Shape::scalar() } else { self.shape().with(at, index.numel()) };
        self.index_copy(axis, index, &value.spread(self.dtype(), &shape))
    }

    #[track_caller]
    pub(crate) fn index_combine(
        &self,
        op: &'static str,
        axis: isize,
        index: &Tensor,
        source: &Tensor,
        combine: Combine,
    ) -> Tensor {
        let axis = or_fail(self.shape().axis(axis).in_op(op));
        let index = index.as_index();
        let index = if index.rank() == 0 { index.reshape(1) } else { index };
        match self.rank() {
            0 => run(IndexCombine { axis, combine }, &[&self.reshape(1), &index, &source.reshape(1)])
                .reshape(()),
            _ => run(IndexCombine { axis, combine }, &[self, &index, source]),
        }
    }
}
