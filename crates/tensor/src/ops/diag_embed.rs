//! `diag_embed`: the last axis on a diagonal of two axes, zeros elsewhere: the adjoint of `diagonal`.

use thalweg_core::{Element, Layout, Shape, View, ViewMut, with_dtype};

use crate::apply::run;
use crate::error::{InOp, OpError, fail, or_fail};
use crate::meta::{Meta, arity};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{Diagonal, copy};
use crate::tensor::Tensor;

/// The last axis on a diagonal.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct DiagEmbed {
    /// The shape of the result.
    pub shape: Shape,
    /// How far above the main diagonal; below it when negative.
    pub offset: isize,
    /// The axis of the rows.
    pub axis1: usize,
    /// The axis of the columns.
    pub axis2: usize,
}

impl DiagEmbed {
    fn places(&self) -> Layout {
        Layout::contiguous(self.shape.clone()).diagonal(self.offset, self.axis1, self.axis2)
    }
}

impl Primitive for DiagEmbed {
    const NAME: &'static str = "diag_embed";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        self.shape.check_countable().in_op(Self::NAME)?;
        let rank = self.shape.rank();
        let fits = self.axis1 < rank && self.axis2 < rank && self.axis1 != self.axis2;
        if !fits || *self.places().shape() != x.shape {
            let hint = "the operand needs the shape of the result's diagonal";
            let (left, right) = (x.shape.clone(), self.shape.clone());
            return Err(OpError::Shapes { op: Self::NAME, left, right, hint });
        }
        Ok(x.with_shape(&self.shape))
    }

    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let DiagEmbed { offset, axis1, axis2, .. } = *self;
        Grad::one(run(Diagonal { offset, axis1, axis2 }, &[g.dy()]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        fn typed<T: Element>(x: View<'_>, places: &Layout, y: &mut [T]) {
            y.fill(T::from_i64(0));
            copy::place(x, places, y);
        }
        with_dtype!(y.dtype(), T => typed::<T>(x[0], &self.places(), y.dense()));
        Ok(())
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost::copy(x, y)
    }

    fn samples() -> Vec<Sample> {
        let call = |from: &[usize], shape: &[usize], offset, axis1, axis2| {
            Sample::new(DiagEmbed { shape: shape.into(), offset, axis1, axis2 }, [Draw::any(from)])
        };
        vec![
            call(&[2, 3], &[2, 3, 3], 0, 1, 2),
            call(&[3, 2], &[4, 3, 2], -2, 0, 2),
            call(&[0], &[2, 3], 5, 0, 1),
        ]
    }
}

impl Tensor {
    /// The last axis on a diagonal of two new axes, zeros elsewhere. The axes are those of the
    /// result; the matrices are as small as the diagonal allows.
    #[track_caller]
    pub fn diag_embed(&self, offset: isize, axis1: isize, axis2: isize) -> Tensor {
        let Some((&n, batch)) = self.shape().split_last() else {
            fail(OpError::Rank { op: DiagEmbed::NAME, want: "at least 1", shape: Shape::scalar() });
        };
        let size = n + offset.unsigned_abs();
        let raised = self.shape().inserted(self.rank(), size);
        let axes = or_fail(raised.axes(&[axis1, axis2]).in_op(DiagEmbed::NAME));
        let mut shape = Shape::from(batch);
        let (first, second) = (axes[0].min(axes[1]), axes[0].max(axes[1]));
        shape = shape.inserted(first, size).inserted(second, size);
        run(DiagEmbed { shape, offset, axis1: axes[0], axis2: axes[1] }, &[self])
    }

    /// Of a vector, the matrix with it on a diagonal; of a matrix, that diagonal.
    #[track_caller]
    pub fn diag(&self, offset: isize) -> Tensor {
        match self.rank() {
            1 => self.diag_embed(offset, 0, 1),
            2 => self.diagonal(offset, 0, 1),
            _ => fail(OpError::Rank { op: "diag", want: "1 or 2", shape: self.shape().clone() }),
        }
    }
}
