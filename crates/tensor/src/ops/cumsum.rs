//! `cumsum`: running sums along one axis. On integers it wraps.

use thalweg_core::{DType, View, ViewMut};

use crate::apply::run;
use crate::error::{InOp, OpError, or_fail};
use crate::meta::{Meta, arity, require_number};
use crate::ops::primitive::{Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::ops::scan;
use crate::tensor::Tensor;

/// Running sums.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Cumsum {
    /// The axis along which they run.
    pub axis: usize,
}

impl Primitive for Cumsum {
    const NAME: &'static str = "cumsum";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        require_number(Self::NAME, x)?;
        scan::infer(Self::NAME, x, self.axis)
    }

    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    /// The same from the other end.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let axis = self.axis as isize;
        Grad::one(run(self.clone(), &[&g.dy().flip(axis)]).flip(axis))
    }

    /// Accumulates in f64 or i64.
    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        if x[0].dtype().is_float() {
            scan::scan([x[0]], self.axis, y, 0.0, add);
        } else {
            scan::scan([x[0]], self.axis, y, 0i64, |sum, _, [v]: [i64; 1]| {
                *sum = sum.wrapping_add(v);
                *sum
            });
        }
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        scan::fast_scan([x[0]], self.axis, y, 0.0, add)
    }

    fn samples() -> Vec<Sample> {
        let mut samples = scan::samples(|axis| Cumsum { axis }, |shape| vec![Draw::any(shape)]);
        samples.push(Sample::new(Cumsum { axis: 0 }, [Draw::int([4, 2], -5, 5)]));
        samples
    }
}

fn add(sum: &mut f64, _: usize, [v]: [f64; 1]) -> f64 {
    *sum += v;
    *sum
}

impl Tensor {
    /// Running sums along one axis. Integers add up as i64.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// assert_eq!(Tensor::from([1.0f32, 2.0, 3.0]).cumsum(0).to_vec::<f32>(), [1.0, 3.0, 6.0]);
    /// ```
    #[track_caller]
    pub fn cumsum(&self, axis: isize) -> Tensor {
        let axis = or_fail(self.shape().axis(axis).in_op(Cumsum::NAME));
        let x = if self.dtype().is_float() { self.clone() } else { self.to_dtype(DType::I64) };
        if x.rank() == 0 { x } else { run(Cumsum { axis }, &[&x]) }
    }
}
