//! `clamp`: y = min(max(x, lo), hi), NaN where any is. With lo above hi it is hi.

use thalweg_core::{DType, View, ViewMut};
use thalweg_kernels::stream::arithmetic::Number;

use crate::apply::run;
use crate::error::{InOp, OpError, or_fail};
use crate::meta::{Meta, arity, require_number, require_same_dtype, require_same_shape};
use crate::operand::Operand;
use crate::ops::elementwise::{blocks, through};
use crate::ops::primitive::{Grad, Keep, Primitive, Tile, Vjp};
use crate::ops::sample::{Draw, Sample, elementwise_shapes};
use crate::scalar::Scalar;
use crate::tensor::Tensor;

/// A value kept between two bounds. Operands: the value, the lower bound, the upper bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Clamp;

impl Primitive for Clamp {
    const NAME: &'static str = "clamp";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x, lo, hi] = arity(Self::NAME, x)?;
        require_number(Self::NAME, x)?;
        for bound in [lo, hi] {
            require_same_dtype(Self::NAME, x, bound)?;
            require_same_shape(Self::NAME, x, bound)?;
        }
        Ok(x.clone())
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::input(1)).and(Keep::input(2))
    }

    /// A value on a bound counts as inside, so it gets the gradient.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (dy, x, lo, hi) = (g.dy(), g.x(0), g.x(1), g.x(2));
        let dx = g.want(0, || x.ge(lo).logical_and(&x.le(hi)).where_(dy, 0.0));
        let dlo = g.want(1, || x.lt(lo).logical_and(&lo.le(hi)).where_(dy, 0.0));
        let dhi = g.want(2, || x.gt(hi).logical_or(&hi.lt(lo)).where_(dy, 0.0));
        Grad::Inputs(smallvec::smallvec![dx, dlo, dhi])
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let x = [x[0], x[1], x[2]];
        if x[0].dtype().is_float() {
            through::<f64, f64, 3>(x, y, |[x, lo, hi], y| clamp(x, lo, hi, y));
        } else {
            through::<i64, i64, 3>(x, y, |[x, lo, hi], y| clamp(x, lo, hi, y));
        }
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let covered = x[0].dtype() == DType::F32;
        if covered {
            blocks::<f32, f32, 3>([x[0], x[1], x[2]], y.dense(), |[x, lo, hi], y| clamp(x, lo, hi, y));
        }
        covered
    }

    fn is_elementwise(&self) -> bool {
        true
    }

    fn tile(&self) -> Option<Tile> {
        Some(Tile::Zip3(clamp))
    }

    fn samples() -> Vec<Sample> {
        let call = |s: thalweg_core::Shape| {
            [Draw::any(s.clone()), Draw::float(s.clone(), -1.2, 0.3), Draw::float(s, -0.3, 1.2)]
        };
        let mut samples: Vec<Sample> = elementwise_shapes().map(|s| Sample::new(Clamp, call(s))).into();
        samples
            .push(Sample::new(Clamp, [Draw::int([9], -9, 9), Draw::int([9], -4, 2), Draw::int([9], 0, 5)]));
        samples
    }
}

fn clamp<T: Number>(x: &[T], lo: &[T], hi: &[T], y: &mut [T]) {
    for (((y, x), lo), hi) in y.iter_mut().zip(x).zip(lo).zip(hi) {
        *y = x.larger(*lo).smaller(*hi);
    }
}

impl Tensor {
    /// Every element kept between two bounds, numbers or tensors; NaN stays. Where the lower bound is
    /// above the upper one, the result is the upper one.
    #[track_caller]
    pub fn clamp<'a, 'b>(&self, lo: impl Into<Operand<'a>>, hi: impl Into<Operand<'b>>) -> Tensor {
        let (lo, hi) = (lo.into(), hi.into());
        let dtype = hi.dtype_with(lo.dtype_with(self.dtype()));
        let shape = or_fail(self.shape().broadcast(&lo.shape()).in_op(Clamp::NAME));
        let shape = or_fail(shape.broadcast(&hi.shape()).in_op(Clamp::NAME));
        let x = self.to_dtype(dtype).broadcast_to(&shape);
        run(Clamp, &[&x, &lo.spread(dtype, &shape), &hi.spread(dtype, &shape)])
    }

    /// Every element raised to at least a bound.
    #[track_caller]
    pub fn clamp_min<'a>(&self, lo: impl Into<Operand<'a>>) -> Tensor {
        let lo = lo.into();
        self.clamp(lo, open_end(lo.dtype_with(self.dtype()), 1.0))
    }

    /// Every element lowered to at most a bound.
    #[track_caller]
    pub fn clamp_max<'a>(&self, hi: impl Into<Operand<'a>>) -> Tensor {
        let hi = hi.into();
        self.clamp(open_end(hi.dtype_with(self.dtype()), -1.0), hi)
    }
}

/// A bound that nothing passes; conversion to the dtype saturates it.
fn open_end(dtype: DType, sign: f64) -> Scalar {
    let infinity = Scalar::Float(sign * f64::INFINITY);
    if dtype.is_float() {
        infinity
    } else {
        Scalar::Int(thalweg_core::with_dtype!(dtype, T => integer_end::<T>(sign)))
    }
}

fn integer_end<T: thalweg_core::Element>(sign: f64) -> i64 {
    T::from_f64(sign * f64::INFINITY).to_i64()
}
