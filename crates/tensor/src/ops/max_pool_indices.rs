//! `max_pool_indices`: where the largest element of each window is, as a position in the flattened pooled
//! axes: the first of equals, the last NaN.

use thalweg_core::{DType, View, ViewMut};

use crate::error::OpError;
use crate::meta::{Meta, arity};
use crate::ops::max_pool::{for_each_max, infer_choice};
use crate::ops::pooling::{self, PoolAxis};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::rowwise::widened;
use crate::ops::sample::{Draw, Sample};

/// Where the largest element of each window is.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct MaxPoolIndices {
    /// The windows along the last axes.
    pub axes: Box<[PoolAxis]>,
}

impl Primitive for MaxPoolIndices {
    const NAME: &'static str = "max_pool_indices";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        Ok(infer_choice(Self::NAME, x, &self.axes)?.with_dtype(DType::I64))
    }

    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    fn grad(&self, _: &Vjp<'_>) -> Grad {
        Grad::None("positions are whole numbers; differentiate `max_pool` instead")
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let w = pooling::checked(Self::NAME, x[0].shape(), &self.axes);
        let (n_out, y) = (w.outputs(), y.dense::<i64>());
        for_each_max(&widened(x[0]), &w, |plane, out, at| y[plane * n_out + out] = at as i64);
        Ok(())
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: x[0].numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        pooling::samples(|axes, _| MaxPoolIndices { axes }, |x, _| vec![Draw::distinct(x)])
    }
}
