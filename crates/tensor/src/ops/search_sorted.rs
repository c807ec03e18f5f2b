//! `searchsorted`: where values would be inserted into a sorted axis to keep it sorted.

use thalweg_core::{DType, Element, View, ViewMut, with_dtype};

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity, require_same_dtype};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// Insertion points. Operands: ascending sequences along the last axis, and values. The sequences are
/// one vector for all values, or one per leading index of the values.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct SearchSorted {
    /// After equal elements instead of before them.
    pub right: bool,
}

impl Primitive for SearchSorted {
    const NAME: &'static str = "searchsorted";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [sorted, values] = arity(Self::NAME, x)?;
        require_same_dtype(Self::NAME, sorted, values)?;
        let lead = |m: &Meta| m.shape[..m.shape.rank().saturating_sub(1)].to_vec();
        let fits = match sorted.shape.rank() {
            0 => false,
            1 => true,
            rank => values.shape.rank() == rank && lead(sorted) == lead(values),
        };
        if !fits {
            let hint = "the sequence is a vector, or agrees with the values in all axes but the last";
            let (left, right) = (sorted.shape.clone(), values.shape.clone());
            return Err(OpError::Shapes { op: Self::NAME, left, right, hint });
        }
        Ok(values.with_dtype(DType::I64))
    }

    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    fn grad(&self, _g: &Vjp<'_>) -> Grad {
        Grad::None("an insertion point is a whole number")
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        fn typed<T: Element>(right: bool, sorted: View<'_>, values: View<'_>, y: &mut [i64]) {
            let n = sorted.shape().last().copied().unwrap_or(0);
            let per_row = if sorted.shape().rank() == 1 {
                y.len()
            } else {
                values.shape().last().copied().unwrap_or(1)
            };
            let rows: Vec<T> = sorted.iter().collect();
            for (i, (y, v)) in y.iter_mut().zip(values.iter::<T>()).enumerate() {
                let row = &rows[i / per_row.max(1) * n..][..n];
                // NaN compares as the largest.
                let before = |&s: &T| if right { at_most(s, v) } else { !at_most(v, s) };
                *y = row.partition_point(before) as i64;
            }
        }
        with_dtype!(x[0].dtype(), T => typed::<T>(self.right, x[0], x[1], y.dense()));
        Ok(())
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let depth = x[0].shape.last().map_or(1, |&n| u64::from(n.max(2).ilog2()) + 1);
        Cost { flops: y.numel() as u64 * depth, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        // Equal sequences are sorted whatever is drawn.
        let call = |right, sorted: &[usize], values: &[usize]| {
            Sample::new(SearchSorted { right }, [Draw::float(sorted, 0.5, 0.5), Draw::any(values)])
        };
        vec![
            call(false, &[4], &[2, 3]),
            call(true, &[2, 5], &[2, 3]),
            call(false, &[0], &[3]),
            call(true, &[3], &[]),
        ]
    }
}

fn at_most<T: Element>(a: T, b: T) -> bool {
    if T::DTYPE.is_float() {
        let (a, b) = (a.to_f64(), b.to_f64());
        b.is_nan() || a <= b
    } else {
        a.to_i64() <= b.to_i64()
    }
}

impl Tensor {
    /// Where values would be inserted to keep this ascending sequence sorted: before equal elements,
    /// or after them with `right`. One vector serves all values; with more axes, each row serves the
    /// values of its row.
    #[track_caller]
    pub fn searchsorted(&self, values: &Tensor, right: bool) -> Tensor {
        let dtype = self.dtype().promote(values.dtype());
        run(SearchSorted { right }, &[&self.to_dtype(dtype), &values.to_dtype(dtype)])
    }
}
