//! `broadcast`: axes of size 1, and new leading axes, repeated. Always a view.

use thalweg_core::{Layout, Shape, View, ViewMut};

use crate::apply::run;
use crate::args::Dims;
use crate::error::{InOp, OpError, fail, or_fail};
use crate::meta::{Meta, arity};
use crate::ops::copy;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// Axes of size 1 repeated.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Broadcast {
    /// The shape of the result.
    pub shape: Shape,
}

impl Primitive for Broadcast {
    const NAME: &'static str = "broadcast";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        let fits = x.shape.rank() <= self.shape.rank()
            && x.shape.iter().rev().zip(self.shape.iter().rev()).all(|(&d, &want)| d == want || d == 1);
        if !fits {
            let hint = "only sizes of 1 can be repeated";
            return Err(OpError::Shapes {
                op: Self::NAME,
                left: x.shape.clone(),
                right: self.shape.clone(),
                hint,
            });
        }
        Ok(x.with_shape(&self.shape))
    }

    fn keep(&self) -> Keep {
        Keep::METAS
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        Grad::one(g.dy().sum_to(&g.meta(0).shape))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let layout = x[0].layout().broadcast_to(y.shape()).in_op(Self::NAME)?;
        copy::through_layout(x[0], &layout, y);
        Ok(())
    }

    fn view(&self, x: &Layout, result: &Shape) -> Option<Layout> {
        x.broadcast_to(result).ok()
    }

    fn cost(&self, _x: &[&Meta], _y: &Meta) -> Cost {
        Cost::default()
    }

    fn samples() -> Vec<Sample> {
        let to =
            |from: &[usize], to: &[usize]| Sample::new(Broadcast { shape: to.into() }, [Draw::any(from)]);
        vec![to(&[2, 1], &[4, 2, 3]), to(&[], &[2, 2]), to(&[1, 3], &[0, 3]), to(&[3], &[3])]
    }
}

impl Tensor {
    /// Repeated to a shape by NumPy's rules, without copying.
    #[track_caller]
    pub fn broadcast_to(&self, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        if shape == *self.shape() { self.clone() } else { run(Broadcast { shape }, &[self]) }
    }

    /// Like [`Tensor::broadcast_to`]; a size of `-1` keeps the axis as it is.
    #[track_caller]
    pub fn expand(&self, dims: impl Into<Dims>) -> Tensor {
        let dims = dims.into();
        let Some(lead) = dims.len().checked_sub(self.rank()) else {
            let right = dims.iter().map(|d| d.max(0) as usize).collect();
            let hint = "the new shape must have at least as many axes";
            fail(OpError::Shapes { op: "expand", left: self.shape().clone(), right, hint })
        };
        let kept = |i: usize| if i < lead { 1 } else { self.shape()[i - lead] };
        let shape =
            dims.iter().enumerate().map(|(i, d)| if d < 0 { kept(i) } else { d as usize }).collect::<Shape>();
        self.broadcast_to(shape)
    }

    /// Summed over whatever broadcasting to this tensor's shape repeated: the adjoint of
    /// [`Tensor::broadcast_to`].
    #[track_caller]
    pub fn sum_to(&self, shape: impl Into<Shape>) -> Tensor {
        let shape = shape.into();
        if shape == *self.shape() {
            return self.clone();
        }
        or_fail(shape.broadcast(self.shape()).in_op("sum_to"));
        let lead = self.rank() - shape.rank();
        let repeated = |&i: &usize| i < lead || (shape[i - lead] == 1 && self.shape()[i] != 1);
        let axes: Vec<isize> = (0..self.rank()).filter(repeated).map(|i| i as isize).collect();
        self.sum(axes).reshape(&shape)
    }
}
