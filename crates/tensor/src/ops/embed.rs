//! `embed`: the operand's elements at some positions of a larger tensor, a constant elsewhere: the
//! adjoint of `slice`, and constant padding.

use smallvec::SmallVec;
use thalweg_core::{Element, Layout, Shape, View, ViewMut, with_dtype};
use thalweg_kernels::stream::split::par_chunks_mut;

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity};
use crate::ops::elementwise::GRAIN;
use crate::ops::primitive::{Cost, Grad, Keep, Number, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{Slice, Stride, copy};

/// The operand placed into a constant.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Embed {
    /// The shape of the result.
    pub shape: Shape,
    /// Where the operand's positions go, one entry per axis.
    pub strides: SmallVec<[Stride; 4]>,
    /// The value everywhere else.
    pub fill: Number,
}

impl Primitive for Embed {
    const NAME: &'static str = "embed";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        let fits = self.strides.len() == self.shape.rank()
            && self.strides.iter().zip(self.shape.iter()).all(|(s, &d)| s.fits(d))
            && self.strides.iter().map(|s| s.len).eq(x.shape.iter().copied());
        if !fits {
            let hint = "every position must lie inside the result";
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
        Keep::NOTHING
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        Grad::one(run(Slice { strides: self.strides.clone() }, &[g.dy()]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        fn typed<T: Element>(op: &Embed, x: View<'_>, y: &mut ViewMut<'_>) {
            let dense = Layout::contiguous(op.shape.clone());
            let place = |l: Layout, (axis, s): (usize, &Stride)| l.slice(axis, s.start, s.len, s.step);
            let places = op.strides.iter().enumerate().fold(dense, place);
            let (y, fill) = (y.dense::<T>(), T::from_f64(op.fill.0));
            par_chunks_mut(y, GRAIN, |_, y| y.fill(fill));
            copy::place(x, &places, y);
        }
        with_dtype!(y.dtype(), T => typed::<T>(self, x[0], y));
        Ok(())
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost::copy(x, y)
    }

    fn samples() -> Vec<Sample> {
        let call = |shape: &[usize], s: &[(usize, usize, isize)], fill: f64| {
            let strides: SmallVec<[Stride; 4]> =
                s.iter().map(|&(start, len, step)| Stride { start, len, step }).collect();
            let from: Shape = strides.iter().map(|s| s.len).collect();
            Sample::new(Embed { shape: shape.into(), strides, fill: Number(fill) }, [Draw::any(from)])
        };
        vec![
            call(&[5, 4], &[(0, 3, 2), (3, 2, -2)], 0.0),
            call(&[4], &[(1, 2, 1)], 1.5),
            call(&[3, 2], &[(0, 0, 1), (0, 2, 1)], -1.0),
        ]
    }
}
