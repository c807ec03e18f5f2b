//! Activations: elementwise nonlinearities of neural networks. Those with a kernel of their own
//! (`relu`, `sigmoid`, `tanh`, `gelu`, `silu`, `softplus`) are ops.
//!
//! Where two branches meet, the gradient is that of PyTorch. A branch that would overflow is fed a
//! bounded argument, since 0 · ∞ in its gradient would be NaN.

use crate::error::{InOp, OpError, fail, or_fail};
use crate::tensor::Tensor;

/// Klambauer et al., "Self-normalizing neural networks" (2017): the fixed point (0, 1).
const SELU_ALPHA: f64 = 1.673_263_242_354_377_2;
const SELU_SCALE: f64 = 1.050_700_987_355_480_5;

impl Tensor {
    /// log σ(x) = −log(1 + e⁻ˣ).
    #[track_caller]
    pub fn log_sigmoid(&self) -> Tensor {
        -(-self.as_float()).softplus()
    }

    /// [`Tensor::softplus`] of steepness `beta`: log(1 + e^(βx)) / β, and x itself where βx passes
    /// `threshold`.
    #[track_caller]
    pub fn softplus_with(&self, beta: f64, threshold: f64) -> Tensor {
        let x = &self.as_float();
        let scaled = &(x * beta);
        scaled.gt(threshold).where_(x, &(scaled.softplus() / beta))
    }

    /// min(max(x, 0), 6).
    #[track_caller]
    pub fn relu6(&self) -> Tensor {
        self.hardtanh(0.0, 6.0)
    }

    /// x where positive, `negative_slope` · x elsewhere.
    #[track_caller]
    pub fn leaky_relu(&self, negative_slope: f64) -> Tensor {
        self.gt(0).where_(self, &(self * negative_slope))
    }

    /// [`Tensor::leaky_relu`] with a learned slope: one for all, or one per channel, which is axis 1.
    #[track_caller]
    pub fn prelu(&self, weight: &Tensor) -> Tensor {
        let channels = if self.rank() < 2 { 1 } else { self.shape()[1] };
        if weight.rank() > 1 || (weight.numel() != 1 && weight.numel() != channels) {
            let hint = "there must be one slope, or one per channel (axis 1)";
            let (left, right) = (self.shape().clone(), weight.shape().clone());
            fail(OpError::Shapes { op: "prelu", left, right, hint });
        }
        let mut sizes = vec![1; self.rank()];
        if weight.numel() != 1 {
            sizes[1] = channels;
        }
        self.gt(0).where_(self, &(weight.reshape(sizes) * self))
    }

    /// x where positive, α (eˣ − 1) elsewhere.
    #[track_caller]
    pub fn elu(&self, alpha: f64) -> Tensor {
        self.gt(0).where_(self, &(self.clamp_max(0.0).expm1() * alpha))
    }

    /// The [`Tensor::elu`] that keeps mean 0 and variance 1.
    #[track_caller]
    pub fn selu(&self) -> Tensor {
        self.elu(SELU_ALPHA) * SELU_SCALE
    }

    /// x where positive, α (e^(x/α) − 1) elsewhere: continuously differentiable for every α.
    #[track_caller]
    pub fn celu(&self, alpha: f64) -> Tensor {
        self.gt(0).where_(self, &((self.clamp_max(0.0) / alpha).expm1() * alpha))
    }

    /// x tanh(log(1 + eˣ)).
    #[track_caller]
    pub fn mish(&self) -> Tensor {
        self * self.softplus().tanh()
    }

    /// x / (1 + |x|).
    #[track_caller]
    pub fn softsign(&self) -> Tensor {
        self / (self.abs() + 1.0)
    }

    /// x − tanh x.
    #[track_caller]
    pub fn tanhshrink(&self) -> Tensor {
        self - self.tanh()
    }

    /// x kept between two numbers. Unlike that of [`Tensor::clamp`], its gradient on a bound is 0.
    #[track_caller]
    pub fn hardtanh(&self, min: f64, max: f64) -> Tensor {
        let inside = self.gt(min).logical_and(&self.lt(max));
        inside.where_(self, &self.stop_gradient().clamp(min, max))
    }

    /// σ(x) by three straight pieces: min(max(x + 3, 0), 6) / 6.
    #[track_caller]
    pub fn hardsigmoid(&self) -> Tensor {
        (self + 3.0).relu6() / 6.0
    }

    /// x · hardsigmoid(x).
    #[track_caller]
    pub fn hardswish(&self) -> Tensor {
        self * (self + 3.0).relu6() / 6.0
    }

    /// x moved towards 0 by `lambda`, and 0 where that would pass it.
    #[track_caller]
    pub fn softshrink(&self, lambda: f64) -> Tensor {
        let kept = self - self.stop_gradient().clamp(-lambda, lambda);
        let inside = self.abs().le(lambda);
        inside.where_(0.0, &kept)
    }

    /// x, and 0 between −`lambda` and `lambda`.
    #[track_caller]
    pub fn hardshrink(&self, lambda: f64) -> Tensor {
        self.abs().le(lambda).where_(0.0, self)
    }

    /// x where it is above `threshold`, `value` elsewhere.
    #[track_caller]
    pub fn threshold(&self, threshold: f64, value: f64) -> Tensor {
        self.le(threshold).where_(value, self)
    }

    /// The first half along an axis, gated by the sigmoid of the second half.
    #[track_caller]
    pub fn glu(&self, axis: isize) -> Tensor {
        let at = or_fail(self.shape().axis(axis).in_op("glu"));
        let size = self.shape().get(at).copied().unwrap_or(1);
        if size % 2 != 0 {
            let (value, shape) = (axis.to_string(), self.shape().clone());
            let need = "the size of the axis must be even, since it is halved";
            fail(OpError::Argument { op: "glu", name: "axis", value, shape, need });
        }
        self.narrow(axis, 0, size / 2) * self.narrow(axis, size / 2, size / 2).sigmoid()
    }
}

#[cfg(test)]
mod tests {
    use crate::{Tensor, grad};

    #[test]
    fn gradients_stay_finite_where_the_other_branch_overflows() {
        let x = Tensor::from([200.0f32, 1e30, -200.0]);
        for f in [
            |x: &Tensor| x.elu(1.0),
            |x: &Tensor| x.celu(0.5),
            Tensor::selu,
            |x: &Tensor| x.softplus_with(2.0, 20.0),
        ] {
            let dx = grad(|x| f(x).sum(()))(&x).to_vec::<f32>();
            assert!(dx[0] >= 1.0 && dx[1] >= 1.0 && dx[2].abs() < 1e-6, "{dx:?}");
        }
    }

    #[test]
    fn gradients_at_the_seams_are_those_of_pytorch() {
        let at = |f: fn(&Tensor) -> Tensor, x: f32| grad(|x| f(x).sum(()))(&Tensor::from([x])).item::<f32>();
        assert_eq!(at(Tensor::relu, 0.0), 0.0);
        assert_eq!((at(Tensor::relu6, 0.0), at(Tensor::relu6, 6.0)), (0.0, 0.0));
        assert_eq!(at(|x| x.elu(0.5), 0.0), 0.5);
        assert_eq!(at(|x| x.leaky_relu(0.1), 0.0), 0.1);
        assert_eq!(at(|x| x.clamp(0.0, 1.0), 1.0), 1.0);
        assert_eq!(at(Tensor::abs, 0.0), 0.0);
    }

    #[test]
    #[should_panic(expected = "glu: axis = -1 for shape [2, 3]")]
    fn glu_refuses_an_odd_axis() {
        let _ = Tensor::from([[1.0f32, 2.0, 3.0], [4.0, 5.0, 6.0]]).glu(-1);
    }
}
