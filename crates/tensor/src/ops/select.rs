//! `where`: each element of `a` where a condition holds, of `b` elsewhere.

use thalweg_core::runs::for_each_run;
use thalweg_core::{DType, Element, View, ViewMut, with_dtype};

use crate::apply::run;
use crate::error::{InOp, OpError, fail, or_fail};
use crate::meta::{Meta, arity, require_same_dtype, require_same_shape};
use crate::operand::Operand;
use crate::ops::elementwise::by_leading_axis;
use crate::ops::primitive::{Grad, Keep, Primitive, Tile, Vjp};
use crate::ops::sample::{Draw, Sample, elementwise_shapes};
use crate::scalar::Scalar;
use crate::tensor::Tensor;

/// A choice per element. Operands: the condition, what it selects, what stands elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Select;

impl Primitive for Select {
    const NAME: &'static str = "where";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [condition, a, b] = arity(Self::NAME, x)?;
        if condition.dtype != DType::Bool {
            return Err(OpError::DType { op: Self::NAME, want: "bool (a condition)", got: condition.dtype });
        }
        require_same_dtype(Self::NAME, a, b)?;
        require_same_shape(Self::NAME, a, b)?;
        require_same_shape(Self::NAME, condition, a)?;
        Ok(a.clone())
    }

    fn keep(&self) -> Keep {
        Keep::input(0)
    }

    /// What was not chosen gets a gradient of exactly 0, whatever its value.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let zero = &g.dy().zeros_like();
        let chosen = |a: &Tensor, b: &Tensor| run(Select, &[g.x(0), a, b]);
        let da = g.want(1, || chosen(g.dy(), zero));
        let db = g.want(2, || chosen(zero, g.dy()));
        Grad::Inputs(smallvec::smallvec![None, da, db])
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        fn typed<T: Element>(x: &[View<'_>], y: &mut ViewMut<'_>) {
            let choices = x[0].iter::<bool>().zip(x[1].iter::<T>()).zip(x[2].iter::<T>());
            for (y, ((condition, a), b)) in y.dense::<T>().iter_mut().zip(choices) {
                *y = if condition { a } else { b };
            }
        }
        with_dtype!(y.dtype(), T => typed::<T>(x, y));
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        with_dtype!(y.dtype(), T => fill::<T>([x[0], x[1], x[2]], y.dense::<T>()));
        true
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn tile(&self) -> Option<Tile> {
        Some(Tile::Zip3(|condition, a, b, y| {
            for (((y, c), a), b) in y.iter_mut().zip(condition).zip(a).zip(b) {
                *y = if *c != 0.0 { *a } else { *b };
            }
        }))
    }

    fn samples() -> Vec<Sample> {
        let call = |s: thalweg_core::Shape| [Draw::bool(s.clone()), Draw::any(s.clone()), Draw::any(s)];
        let mut samples: Vec<Sample> = elementwise_shapes().map(|s| Sample::new(Select, call(s))).into();
        samples.push(Sample::new(Select, [Draw::bool([7]), Draw::int([7], -9, 9), Draw::int([7], -9, 9)]));
        samples
    }
}

fn fill<T: Element>(x: [View<'_>; 3], y: &mut [T]) {
    let (condition, a, b) = (x[0].memory::<bool>(), x[1].memory::<T>(), x[2].memory::<T>());
    by_leading_axis(x.map(|v| v.layout()), y, &|layouts, y| {
        let mut rest = y;
        for_each_run(layouts, |at, n, strides| {
            let (piece, after) = std::mem::take(&mut rest).split_at_mut(n);
            rest = after;
            let straight = |k: usize| at[k]..at[k] + n;
            // Two tensors, or a tensor and a constant: the forms that masks take.
            match strides {
                [1, 1, 1] => choose(&condition[straight(0)], &a[straight(1)], &b[straight(2)], piece),
                [1, 1, 0] => choose_or(&condition[straight(0)], &a[straight(1)], b[at[2]], true, piece),
                [1, 0, 1] => choose_or(&condition[straight(0)], &b[straight(2)], a[at[1]], false, piece),
                _ => {
                    let position = |k: usize, i: usize| (at[k] as isize + i as isize * strides[k]) as usize;
                    for (i, y) in piece.iter_mut().enumerate() {
                        *y = if condition[position(0, i)] { a[position(1, i)] } else { b[position(2, i)] };
                    }
                }
            }
        });
    });
}

fn choose<T: Copy>(condition: &[bool], a: &[T], b: &[T], y: &mut [T]) {
    for (((y, &c), &a), &b) in y.iter_mut().zip(condition).zip(a).zip(b) {
        *y = if c { a } else { b };
    }
}

/// `a` where the condition is `taken`, a constant elsewhere.
fn choose_or<T: Copy>(condition: &[bool], a: &[T], constant: T, taken: bool, y: &mut [T]) {
    for ((y, &c), &a) in y.iter_mut().zip(condition).zip(a) {
        *y = if c == taken { a } else { constant };
    }
}

impl Tensor {
    /// Elements of `a` where this condition holds, of `b` elsewhere: `torch.where(self, a, b)`.
    /// Everything broadcasts, and numbers may stand for tensors. What is not selected gets a gradient
    /// of exactly 0, even where it is NaN.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let x = Tensor::from([1.0f32, -2.0, 3.0]);
    /// assert_eq!(x.gt(0.0).where_(&x, 0.0).to_vec::<f32>(), [1.0, 0.0, 3.0]);
    /// ```
    #[track_caller]
    pub fn where_<'a, 'b>(&self, a: impl Into<Operand<'a>>, b: impl Into<Operand<'b>>) -> Tensor {
        let (a, b) = (a.into(), b.into());
        let dtype = match (a, b) {
            (Operand::Tensor(a), b) => b.dtype_with(a.dtype()),
            (Operand::Number(a), b) => match b {
                Operand::Tensor(b) => a.dtype_with(b.dtype()),
                Operand::Number(b) => a.dtype_with(b.dtype()),
            },
        };
        let shape = or_fail(a.shape().broadcast(&b.shape()).in_op(Select::NAME));
        let shape = or_fail(self.shape().broadcast(&shape).in_op(Select::NAME));
        run(Select, &[&self.broadcast_to(&shape), &a.spread(dtype, &shape), &b.spread(dtype, &shape)])
    }

    /// This tensor with one number where a mask is true. Mask and tensor broadcast.
    #[track_caller]
    pub fn masked_fill(&self, mask: &Tensor, value: impl Into<Scalar>) -> Tensor {
        let value = value.into();
        if value.dtype_with(self.dtype()) != self.dtype() {
            fail(OpError::DTypes { op: "masked_fill", left: self.dtype(), right: value.dtype() });
        }
        mask.where_(value, self)
    }
}
