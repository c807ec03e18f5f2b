//! `diagonal`: the elements where two axes have equal index, as a new last axis. Always a view.

use thalweg_core::{Layout, Shape, View, ViewMut};

use crate::apply::run;
use crate::error::{InOp, OpError, fail, or_fail};
use crate::meta::{Meta, arity};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{DiagEmbed, copy};
use crate::tensor::Tensor;

/// The elements where two axes have equal index.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Diagonal {
    /// How far above the main diagonal; below it when negative.
    pub offset: isize,
    /// The axis of the rows.
    pub axis1: usize,
    /// The axis of the columns.
    pub axis2: usize,
}

impl Primitive for Diagonal {
    const NAME: &'static str = "diagonal";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        let rank = x.shape.rank();
        if self.axis1 >= rank || self.axis2 >= rank || self.axis1 == self.axis2 {
            return Err(OpError::Argument {
                op: Self::NAME,
                name: "axes",
                value: format!("{} and {}", self.axis1, self.axis2),
                shape: x.shape.clone(),
                need: "two different axes of the operand",
            });
        }
        let layout = Layout::contiguous(x.shape.clone()).diagonal(self.offset, self.axis1, self.axis2);
        Ok(x.with_shape(layout.shape()))
    }

    fn keep(&self) -> Keep {
        Keep::METAS
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let Diagonal { offset, axis1, axis2 } = *self;
        Grad::one(run(DiagEmbed { shape: g.meta(0).shape.clone(), offset, axis1, axis2 }, &[g.dy()]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        copy::through_layout(x[0], &x[0].layout().diagonal(self.offset, self.axis1, self.axis2), y);
        Ok(())
    }

    fn view(&self, x: &Layout, _result: &Shape) -> Option<Layout> {
        Some(x.diagonal(self.offset, self.axis1, self.axis2))
    }

    fn cost(&self, _x: &[&Meta], _y: &Meta) -> Cost {
        Cost::default()
    }

    fn samples() -> Vec<Sample> {
        let call = |shape: &[usize], offset, axis1, axis2| {
            Sample::new(Diagonal { offset, axis1, axis2 }, [Draw::any(shape)])
        };
        vec![
            call(&[3, 3], 0, 0, 1),
            call(&[2, 3, 4], 1, 1, 2),
            call(&[2, 3, 4], -1, 2, 0),
            call(&[2, 3], 7, 0, 1),
            call(&[0, 3], 0, 0, 1),
        ]
    }
}

impl Tensor {
    /// The elements where two axes have equal index, `offset` above the main diagonal, as a new
    /// last axis.
    #[track_caller]
    pub fn diagonal(&self, offset: isize, axis1: isize, axis2: isize) -> Tensor {
        if self.rank() < 2 {
            fail(OpError::Rank { op: Diagonal::NAME, want: "at least 2", shape: self.shape().clone() });
        }
        let axes = or_fail(self.shape().axes(&[axis1, axis2]).in_op(Diagonal::NAME));
        run(Diagonal { offset, axis1: axes[0], axis2: axes[1] }, &[self])
    }
}
