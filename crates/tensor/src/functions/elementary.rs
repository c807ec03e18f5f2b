//! Elementwise functions of a few ops: tests for special values, interpolation, fused updates.

use thalweg_core::DType;

use crate::operand::Operand;
use crate::tensor::Tensor;

impl Tensor {
    /// x without its whole part, with the sign of x.
    #[track_caller]
    pub fn frac(&self) -> Tensor {
        self - self.trunc()
    }

    /// log(x / (1 − x)), the inverse of the sigmoid.
    #[track_caller]
    pub fn logit(&self) -> Tensor {
        (self / (1.0 - self)).log()
    }

    /// Where the elements are +∞ or −∞.
    #[track_caller]
    pub fn isinf(&self) -> Tensor {
        self.as_float().abs().eq(f64::INFINITY)
    }

    /// Where the elements are neither infinite nor NaN.
    #[track_caller]
    pub fn isfinite(&self) -> Tensor {
        self.as_float().abs().lt(f64::INFINITY)
    }

    /// NaN replaced by 0, infinities by the largest and smallest numbers of the dtype.
    #[track_caller]
    pub fn nan_to_num(&self) -> Tensor {
        let largest = match self.dtype() {
            DType::F16 => f64::from(half::f16::MAX),
            DType::BF16 => f64::from(half::bf16::MAX),
            DType::F32 => f64::from(f32::MAX),
            _ => f64::MAX,
        };
        self.nan_to_num_with(0.0, largest, -largest)
    }

    /// NaN and the infinities replaced by given numbers.
    #[track_caller]
    pub fn nan_to_num_with(&self, nan: f64, posinf: f64, neginf: f64) -> Tensor {
        if !self.dtype().is_float() {
            return self.clone();
        }
        let x = self.eq(f64::INFINITY).where_(posinf, self);
        let x = self.eq(f64::NEG_INFINITY).where_(neginf, &x);
        self.isnan().where_(nan, &x)
    }

    /// self + weight · (end − self): from `self` at 0 to `end` at 1.
    #[track_caller]
    pub fn lerp<'a>(&self, end: &Tensor, weight: impl Into<Operand<'a>>) -> Tensor {
        let way = &(end - self);
        match weight.into() {
            Operand::Tensor(weight) => self + weight * way,
            Operand::Number(weight) => self + way * weight.to_f64(),
        }
    }

    /// self + value · a · b.
    #[track_caller]
    pub fn addcmul(&self, a: &Tensor, b: &Tensor, value: f64) -> Tensor {
        self + a * b * value
    }

    /// self + value · a / b.
    #[track_caller]
    pub fn addcdiv(&self, a: &Tensor, b: &Tensor, value: f64) -> Tensor {
        self + a / b * value
    }
}
