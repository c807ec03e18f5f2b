//! `flat_index`: positions along several axes as positions along all of them taken as one. Negative
//! ones count from the back.

use smallvec::SmallVec;
use thalweg_core::{View, ViewMut};

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, require_index, require_same_shape};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// Positions along several axes as one. Operands: one index per axis, of equal shapes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct FlatIndex {
    /// The sizes of the axes, outermost first.
    pub sizes: SmallVec<[usize; 4]>,
}

impl Primitive for FlatIndex {
    const NAME: &'static str = "flat_index";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let Some((first, rest)) = x.split_first().filter(|_| x.len() == self.sizes.len()) else {
            return Err(OpError::Arity { op: Self::NAME, want: self.sizes.len(), got: x.len() });
        };
        require_index(Self::NAME, first)?;
        for m in rest {
            require_index(Self::NAME, m)?;
            require_same_shape(Self::NAME, first, m)?;
        }
        Ok((*first).clone())
    }

    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    fn grad(&self, _g: &Vjp<'_>) -> Grad {
        Grad::None("a position is a whole number")
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let y = y.dense::<i64>();
        y.fill(0);
        for (index, &size) in x.iter().zip(&self.sizes) {
            for (y, i) in y.iter_mut().zip(index.iter::<i64>()) {
                let at = if i < 0 { i.wrapping_add(size as i64) } else { i };
                if !(0..size as i64).contains(&at) {
                    return Err(OpError::Index { op: "index", index: i, size });
                }
                *y = *y * size as i64 + at;
            }
        }
        Ok(())
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: (x.len() * y.numel()) as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |sizes: &[usize], shape: &[usize]| {
            let draw = |&n: &usize| Draw::int(shape, -(n as i64), n as i64);
            Sample::new(FlatIndex { sizes: sizes.into() }, sizes.iter().map(draw))
        };
        vec![call(&[4], &[3, 2]), call(&[3, 5], &[7]), call(&[2, 3, 4], &[]), call(&[3, 3], &[0])]
    }
}

impl Tensor {
    /// One index per axis, of equal shapes, as an index into all the axes taken as one.
    #[track_caller]
    pub(crate) fn flat_index(index: &[Tensor], sizes: &[usize]) -> Tensor {
        run(FlatIndex { sizes: sizes.into() }, &index.iter().collect::<Vec<_>>())
    }
}
