//! `linear_scan`: yₜ = aₜ yₜ₋₁ + bₜ along one axis, from y₀ = b₀. Running products, discounted sums,
//! moving averages and state-space models are this recurrence, and so is its own gradient.

use thalweg_core::{DType, View, ViewMut};

use crate::apply::run;
use crate::arithmetic::binary;
use crate::error::{InOp, OpError, or_fail};
use crate::meta::{Meta, arity, require_number, require_same_dtype, require_same_shape};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::ops::scan;
use crate::tensor::Tensor;

/// The recurrence yₜ = aₜ yₜ₋₁ + bₜ. The first a is not used.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct LinearScan {
    /// The axis along which it runs.
    pub axis: usize,
}

impl Primitive for LinearScan {
    const NAME: &'static str = "linear_scan";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [a, b] = arity(Self::NAME, x)?;
        require_number(Self::NAME, a)?;
        require_same_dtype(Self::NAME, a, b)?;
        require_same_shape(Self::NAME, a, b)?;
        scan::infer(Self::NAME, a, self.axis)
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::OUTPUT)
    }

    /// dbₜ = dyₜ + aₜ₊₁ dbₜ₊₁, the recurrence from the other end; daₜ = dbₜ yₜ₋₁.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (axis, n) = (self.axis, g.dy().shape()[self.axis]);
        let back = axis as isize;
        let following = g.x(0).but_first(axis).placed(axis, n, 0, 0.0).flip(back);
        let db = run(self.clone(), &[&following, &g.dy().flip(back)]).flip(back);
        g.pair(|| &db * g.y().but_last(axis).placed(axis, n, 1, 0.0), || db.clone())
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let x = [x[0], x[1]];
        if y.dtype().is_float() {
            scan::scan(x, self.axis, y, 0.0, advance);
        } else {
            scan::scan(x, self.axis, y, 0i64, |h, t, [a, b]: [i64; 2]| {
                *h = if t == 0 { b } else { a.wrapping_mul(*h).wrapping_add(b) };
                *h
            });
        }
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        scan::fast_scan([x[0], x[1]], self.axis, y, 0.0, advance)
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 2 * y.numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let draw = |shape: thalweg_core::Shape| vec![Draw::float(shape.clone(), -1.0, 1.0), Draw::any(shape)];
        let mut samples = scan::samples(|axis| LinearScan { axis }, draw);
        samples
            .push(Sample::new(LinearScan { axis: 1 }, [Draw::int([2, 3], -3, 3), Draw::int([2, 3], -3, 3)]));
        samples
    }
}

fn advance(h: &mut f64, t: usize, [a, b]: [f64; 2]) -> f64 {
    *h = if t == 0 { b } else { a * *h + b };
    *h
}

impl Tensor {
    /// yₜ = decayₜ · yₜ₋₁ + xₜ along one axis, from y₀ = x₀. The decay broadcasts; its first entry is not
    /// used.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let x = Tensor::from([1.0f32, 1.0, 1.0]);
    /// assert_eq!(x.linear_scan(&Tensor::scalar(0.5), 0).to_vec::<f32>(), [1.0, 1.5, 1.75]);
    /// ```
    #[track_caller]
    pub fn linear_scan(&self, decay: &Tensor, axis: isize) -> Tensor {
        let shape = or_fail(self.shape().broadcast(decay.shape()).in_op(LinearScan::NAME));
        let axis = or_fail(shape.axis(axis).in_op(LinearScan::NAME));
        binary(LinearScan { axis }, decay, self)
    }

    /// Running products along one axis. Integers multiply as i64.
    #[track_caller]
    pub fn cumprod(&self, axis: isize) -> Tensor {
        let axis = or_fail(self.shape().axis(axis).in_op("cumprod"));
        let x = if self.dtype().is_float() { self.clone() } else { self.to_dtype(DType::I64) };
        if x.rank() == 0 || x.shape()[axis] == 0 {
            return x;
        }
        // Adding −0 changes nothing, not even the sign of a zero.
        let first = x.narrow(axis as isize, 0, 1).placed(axis, x.shape()[axis], 0, -0.0);
        run(LinearScan { axis }, &[&x, &first])
    }
}
