//! `reshape`: the same elements in row-major order under another shape. A view when strides allow.

use thalweg_core::{Layout, Shape, View, ViewMut};

use crate::apply::run;
use crate::args::Dims;
use crate::error::{OpError, or_fail};
use crate::meta::{Meta, arity};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{Op, copy};
use crate::tensor::Tensor;

/// The same elements under another shape.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Reshape {
    /// The shape of the result.
    pub shape: Shape,
}

impl Primitive for Reshape {
    const NAME: &'static str = "reshape";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        if x.numel() != self.shape.numel() {
            let hint = "the number of elements must stay the same";
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
        Grad::one(run(Reshape { shape: g.meta(0).shape.clone() }, &[g.dy()]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        copy::into_dense(x[0], y);
        Ok(())
    }

    fn view(&self, x: &Layout, result: &Shape) -> Option<Layout> {
        x.reshape(result)
    }

    fn cost(&self, _x: &[&Meta], _y: &Meta) -> Cost {
        Cost::default()
    }

    fn samples() -> Vec<Sample> {
        let to = |from: &[usize], to: &[usize]| Sample::new(Reshape { shape: to.into() }, [Draw::any(from)]);
        vec![
            to(&[2, 3], &[3, 2]),
            to(&[2, 3, 2], &[12]),
            to(&[1], &[]),
            to(&[0, 3], &[3, 0, 5]),
            to(&[6], &[2, 1, 3]),
        ]
    }
}

impl Tensor {
    /// The same elements under another shape. One size may be `-1`: it is inferred.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// assert_eq!(**Tensor::arange(6).reshape([2, -1]).shape(), [2, 3]);
    /// ```
    #[track_caller]
    pub fn reshape(&self, dims: impl Into<Dims>) -> Tensor {
        let shape = or_fail(dims.into().resolve(Reshape::NAME, self.shape()));
        if shape == *self.shape() {
            return self.clone();
        }
        run(Op::Reshape(Reshape { shape }), &[self])
    }
}
