//! `logcumsumexp`: yₜ = log Σₛ≤ₜ exp(xₛ) along one axis.

use thalweg_core::{View, ViewMut};

use crate::apply::run;
use crate::error::{InOp, OpError, or_fail};
use crate::meta::{Meta, arity, require_float};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{LinearScan, scan};
use crate::tensor::Tensor;

/// Running log-sum-exp.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Logcumsumexp {
    /// The axis along which it runs.
    pub axis: usize,
}

impl Primitive for Logcumsumexp {
    const NAME: &'static str = "logcumsumexp";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        require_float(Self::NAME, x)?;
        scan::infer(Self::NAME, x, self.axis)
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::OUTPUT)
    }

    /// dxₜ = Σₛ≥ₜ dyₛ exp(xₜ − yₛ) = exp(xₜ − yₜ) rₜ, where rₜ = dyₜ + exp(yₜ − yₜ₊₁) rₜ₊₁. As y never falls,
    /// no exponent is positive. NaN while all elements so far are −∞.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (axis, y) = (self.axis, g.y());
        let fade = (y.but_last(axis) - y.but_first(axis)).exp().placed(axis, y.shape()[axis], 0, 0.0);
        let back = axis as isize;
        let r = run(LinearScan { axis }, &[&fade.flip(back), &g.dy().flip(back)]).flip(back);
        Grad::one((g.x(0) - &y).exp() * r)
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        scan::scan([x[0]], self.axis, y, f64::NEG_INFINITY, add);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        scan::fast_scan([x[0]], self.axis, y, f64::NEG_INFINITY, add)
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 20 * y.numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        scan::samples(|axis| Logcumsumexp { axis }, |shape| vec![Draw::any(shape)])
    }
}

fn add(sum: &mut f64, _: usize, [v]: [f64; 1]) -> f64 {
    *sum = log_add_exp(*sum, v);
    *sum
}

/// log(eᵃ + eᵇ), infinities and NaN included.
fn log_add_exp(a: f64, b: f64) -> f64 {
    let max = if a.is_nan() || a > b { a } else { b };
    if max.is_finite() { max + (-(a - b).abs()).exp().ln_1p() } else { max }
}

impl Tensor {
    /// Running log-sum-exp along one axis.
    #[track_caller]
    pub fn logcumsumexp(&self, axis: isize) -> Tensor {
        let axis = or_fail(self.shape().axis(axis).in_op(Logcumsumexp::NAME));
        let x = self.as_float();
        if x.rank() == 0 { x } else { run(Logcumsumexp { axis }, &[&x]) }
    }
}
