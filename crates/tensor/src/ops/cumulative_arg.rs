//! `cumulative_arg`: where the largest or smallest element so far stands along one axis, as i64. The last
//! of equals, and the last NaN before everything.

use thalweg_core::{DType, View, ViewMut};

use crate::apply::run;
use crate::error::{InOp, OpError, or_fail};
use crate::meta::{Meta, arity};
use crate::ops::elementwise::Wide;
use crate::ops::primitive::{Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{Extreme, scan};
use crate::tensor::Tensor;

/// Where the extreme element so far stands.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct CumulativeArg {
    /// Largest or smallest.
    pub kind: Extreme,
    /// The axis along which it runs.
    pub axis: usize,
}

impl Primitive for CumulativeArg {
    const NAME: &'static str = "cumulative_arg";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        Ok(scan::infer(Self::NAME, x, self.axis)?.with_dtype(DType::I64))
    }

    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    fn grad(&self, _g: &Vjp<'_>) -> Grad {
        Grad::None("a position is a whole number; take the values there with `gather`")
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        fn walk<W: Wide + PartialOrd>(op: &CumulativeArg, x: View<'_>, y: &mut ViewMut<'_>) {
            scan::scan([x], op.axis, y, (W::default(), 0i64), |(best, at), t, [v]: [W; 1]| {
                // The last of equals: unless the old one beats the new one, the new one stays.
                if t == 0 || !op.kind.beats(*best, v) {
                    (*best, *at) = (v, t as i64);
                }
                *at
            });
        }
        if x[0].dtype().is_float() {
            walk::<f64>(self, x[0], y)
        } else {
            walk::<i64>(self, x[0], y)
        }
        Ok(())
    }

    fn samples() -> Vec<Sample> {
        let of = |kind| scan::samples(move |axis| CumulativeArg { kind, axis }, |s| vec![Draw::distinct(s)]);
        let ties = |kind| Sample::new(CumulativeArg { kind, axis: 1 }, [Draw::int([2, 9], 0, 3)]);
        [of(Extreme::Max), of(Extreme::Min), vec![ties(Extreme::Max), ties(Extreme::Min)]].concat()
    }
}

impl Tensor {
    /// The largest element so far along one axis, and where it stands; the last of equals, NaN wins.
    #[track_caller]
    pub fn cummax(&self, axis: isize) -> (Tensor, Tensor) {
        self.cumulative_extremum("cummax", Extreme::Max, axis)
    }

    /// The smallest element so far along one axis, and where it stands; the last of equals, NaN wins.
    #[track_caller]
    pub fn cummin(&self, axis: isize) -> (Tensor, Tensor) {
        self.cumulative_extremum("cummin", Extreme::Min, axis)
    }

    #[track_caller]
    fn cumulative_extremum(&self, name: &'static str, kind: Extreme, axis: isize) -> (Tensor, Tensor) {
        let axis = or_fail(self.shape().axis(axis).in_op(name));
        if self.rank() == 0 {
            return (self.clone(), Tensor::scalar(0i64));
        }
        let index = run(CumulativeArg { kind, axis }, &[self]);
        (self.gather(axis as isize, &index), index)
    }
}

#[test]
fn the_last_of_equals_and_nan_win() {
    let x = Tensor::from([1.0f32, 3.0, 3.0, f32::NAN, 5.0, f32::NAN]);
    assert_eq!(x.cummax(0).1.to_vec::<i64>(), [0, 1, 2, 3, 3, 5]);
    assert_eq!(x.cummin(0).1.to_vec::<i64>(), [0, 0, 0, 3, 3, 5]);
}
