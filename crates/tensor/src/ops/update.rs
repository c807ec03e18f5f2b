//! `update`: the operand with some positions of each axis replaced.

use smallvec::SmallVec;
use thalweg_core::{Element, Layout, Shape, View, ViewMut, with_dtype};

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity, require_same_dtype};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{Slice, Stride, copy};
use crate::tensor::Tensor;

/// The operand with some positions of each axis replaced. Operands: the old values, and the new ones.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Update {
    /// Which positions, one entry per axis.
    pub strides: SmallVec<[Stride; 4]>,
}

impl Primitive for Update {
    const NAME: &'static str = "update";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x, new] = arity(Self::NAME, x)?;
        require_same_dtype(Self::NAME, x, new)?;
        let fits = self.strides.len() == x.shape.rank()
            && self.strides.iter().zip(x.shape.iter()).all(|(s, &d)| s.fits(d))
            && self.strides.iter().map(|s| s.len).eq(new.shape.iter().copied());
        if !fits {
            let hint = "the new values need the shape of the positions they replace";
            return Err(OpError::Shapes {
                op: Self::NAME,
                left: x.shape.clone(),
                right: new.shape.clone(),
                hint,
            });
        }
        Ok(x.clone())
    }

    fn keep(&self) -> Keep {
        Keep::METAS
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let dx = || run(self.clone(), &[g.dy(), &Tensor::zeros_of(g.meta(1))]);
        g.pair(dx, || run(Slice { strides: self.strides.clone() }, &[g.dy()]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        fn typed<T: Element>(x: View<'_>, places: &Layout, y: &mut [T]) {
            copy::place(x, places, y);
        }
        copy::into_dense(x[0], y);
        let dense = Layout::contiguous(y.shape().clone());
        let place = |l: Layout, (axis, s): (usize, &Stride)| l.slice(axis, s.start, s.len, s.step);
        let places = self.strides.iter().enumerate().fold(dense, place);
        with_dtype!(y.dtype(), T => typed::<T>(x[1], &places, y.dense()));
        Ok(())
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost::copy(x, y)
    }

    fn samples() -> Vec<Sample> {
        let call = |shape: &[usize], s: &[(usize, usize, isize)]| {
            let strides: SmallVec<[Stride; 4]> =
                s.iter().map(|&(start, len, step)| Stride { start, len, step }).collect();
            let new: Shape = strides.iter().map(|s| s.len).collect();
            Sample::new(Update { strides }, [Draw::any(shape), Draw::any(new)])
        };
        vec![
            call(&[5, 4], &[(0, 3, 2), (3, 2, -2)]),
            call(&[4], &[(1, 2, 1)]),
            call(&[3, 2], &[(0, 0, 1), (0, 2, 1)]),
            call(&[], &[]),
        ]
    }
}
