//! `concat`: tensors one after the other along an axis that exists.

use thalweg_core::{Element, Layout, Shape, View, ViewMut, with_dtype};

use crate::apply::run;
use crate::error::{InOp, OpError, fail, or_fail};
use crate::meta::{Meta, require_same_dtype};
use crate::ops::copy;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// Tensors one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Concat {
    /// The axis along which they follow each other.
    pub axis: usize,
}

impl Primitive for Concat {
    const NAME: &'static str = "concat";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let Some((first, rest)) = x.split_first() else {
            return Err(OpError::Arity { op: Self::NAME, want: 1, got: 0 });
        };
        first.shape.axis(self.axis as isize).in_op(Self::NAME)?;
        if first.shape.rank() == 0 {
            return Err(OpError::Rank {
                op: Self::NAME,
                want: "at least 1 (use `stack` for scalars)",
                shape: Shape::scalar(),
            });
        }
        let mut size = first.shape[self.axis];
        for m in rest {
            require_same_dtype(Self::NAME, first, m)?;
            if m.shape.rank() != first.shape.rank()
                || m.shape.without(self.axis) != first.shape.without(self.axis)
            {
                let hint = "all sizes but that of the joined axis must be equal";
                return Err(OpError::Shapes {
                    op: Self::NAME,
                    left: first.shape.clone(),
                    right: m.shape.clone(),
                    hint,
                });
            }
            size += m.shape[self.axis];
        }
        Ok(first.with_shape(first.shape.with(self.axis, size)))
    }

    fn keep(&self) -> Keep {
        Keep::METAS
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let mut start = 0;
        let piece = |i: usize| {
            let len = g.meta(i).shape[self.axis];
            start += len;
            g.want(i, || g.dy().narrow(self.axis as isize, start - len, len))
        };
        Grad::Inputs((0..g.n_inputs()).map(piece).collect())
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        fn typed<T: Element>(axis: usize, x: &[View<'_>], y: &mut ViewMut<'_>) {
            let (_, size, inner) = y.shape().around(axis);
            let row = size * inner;
            let y = y.dense::<T>();
            let mut start = 0;
            for x in x {
                let len = x.shape()[axis] * inner;
                let mut values = x.iter::<T>();
                if len > 0 {
                    for y in y.chunks_exact_mut(row) {
                        y[start..start + len].iter_mut().zip(values.by_ref()).for_each(|(y, v)| *y = v);
                    }
                }
                start += len;
            }
        }
        with_dtype!(y.dtype(), T => typed::<T>(self.axis, x, y));
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        fn typed<T: Element>(axis: usize, x: &[View<'_>], y: &mut ViewMut<'_>) {
            let dense = Layout::contiguous(y.shape().clone());
            let mut start = 0;
            for x in x {
                let len = x.shape()[axis];
                copy::place(*x, &dense.slice(axis, start, len, 1), y.dense::<T>());
                start += len;
            }
        }
        with_dtype!(y.dtype(), T => typed::<T>(self.axis, x, y));
        true
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost::copy(x, y)
    }

    fn samples() -> Vec<Sample> {
        let call =
            |axis, shapes: &[&[usize]]| Sample::new(Concat { axis }, shapes.iter().map(|&s| Draw::any(s)));
        vec![
            call(0, &[&[2, 3], &[1, 3], &[3, 3]]),
            call(1, &[&[2, 3], &[2, 1]]),
            call(0, &[&[2, 3], &[0, 3]]),
            call(2, &[&[1, 2, 2], &[1, 2, 3]]),
        ]
    }
}

impl Tensor {
    /// Tensors one after the other along an axis; dtypes are promoted.
    #[track_caller]
    pub fn concat<T: std::borrow::Borrow<Tensor>>(tensors: &[T], axis: isize) -> Tensor {
        let Some(first) = tensors.first() else { fail(OpError::Arity { op: Concat::NAME, want: 1, got: 0 }) };
        let axis = or_fail(first.borrow().shape().axis(axis).in_op(Concat::NAME));
        let dtype =
            tensors.iter().map(|t| t.borrow().dtype()).reduce(|a, b| a.promote(b)).expect("not empty");
        let tensors: Vec<Tensor> = tensors.iter().map(|t| t.borrow().to_dtype(dtype)).collect();
        run(Concat { axis }, &tensors.iter().collect::<Vec<_>>())
    }

    /// Tensors of one shape along a new axis.
    #[track_caller]
    pub fn stack<T: std::borrow::Borrow<Tensor>>(tensors: &[T], axis: isize) -> Tensor {
        let raised: Vec<Tensor> = tensors.iter().map(|t| t.borrow().unsqueeze(axis)).collect();
        match raised.first() {
            Some(first) => {
                let axis = if axis < 0 { axis + first.rank() as isize } else { axis };
                Tensor::concat(&raised, axis)
            }
            None => fail(OpError::Arity { op: "stack", want: 1, got: 0 }),
        }
    }
}
