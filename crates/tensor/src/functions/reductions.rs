//! Reductions that are a few ops: counting, norms, extremes with their positions, differences.

use thalweg_core::DType;

use crate::args::Axes;
use crate::error::{InOp, OpError, fail, or_fail};
use crate::tensor::Tensor;

impl Tensor {
    /// How many elements are not zero over some axes, `()` for all, as i64. NaN is not zero.
    #[track_caller]
    pub fn count_nonzero(&self, axes: impl Into<Axes>) -> Tensor {
        self.to_dtype(DType::Bool).sum(axes)
    }

    /// Whether any element is not zero over some axes, `()` for all. Of no elements: false.
    #[track_caller]
    pub fn any(&self, axes: impl Into<Axes>) -> Tensor {
        self.count_nonzero(axes).ne(0)
    }

    /// Whether all elements are not zero over some axes, `()` for all. Of no elements: true.
    #[track_caller]
    pub fn all(&self, axes: impl Into<Axes>) -> Tensor {
        self.eq(0).sum(axes).eq(0)
    }

    /// The largest element along an axis and where it stands: the first of equals, NaN wins. The gradient
    /// goes to the element at that position alone.
    #[track_caller]
    pub fn max_dim(&self, axis: isize) -> (Tensor, Tensor) {
        self.value_at(axis, self.argmax_keepdim(axis))
    }

    /// The smallest element along an axis and where it stands: the first of equals, NaN wins. The gradient
    /// goes to the element at that position alone.
    #[track_caller]
    pub fn min_dim(&self, axis: isize) -> (Tensor, Tensor) {
        self.value_at(axis, self.argmin_keepdim(axis))
    }

    #[track_caller]
    fn value_at(&self, axis: isize, index: Tensor) -> (Tensor, Tensor) {
        (self.gather(axis, &index).squeeze(axis), index.squeeze(axis))
    }

    /// The norm (Σ |x|ᵖ)^(1/p) over some axes, `()` for all; for p = ∞ the largest magnitude, for −∞ the
    /// smallest, for 0 the number of elements that are not zero. Where the norm is 0 its gradient is 0.
    #[track_caller]
    pub fn vector_norm(&self, p: f64, axes: impl Into<Axes>) -> Tensor {
        let x = self.as_float();
        if matches!(x.dtype(), DType::F16 | DType::BF16) {
            // Squares overflow half precision long before the norm does.
            return x.to_dtype(DType::F32).vector_norm(p, axes).to_dtype(x.dtype());
        }
        if p.is_nan() {
            let (value, shape) = (p.to_string(), x.shape().clone());
            fail(OpError::Argument { op: "vector_norm", name: "p", value, shape, need: "a number" });
        }
        match p {
            0.0 => x.count_nonzero(axes).to_dtype(x.dtype()),
            1.0 => x.abs().sum(axes),
            2.0 => root_or_zero(&(&x * &x).sum(axes), 2.0),
            f64::INFINITY => x.abs().amax(axes),
            f64::NEG_INFINITY => x.abs().amin(axes),
            _ => root_or_zero(&x.abs().powf(p).sum(axes), p),
        }
    }

    /// The sum of the diagonal of each matrix in the last two axes.
    #[track_caller]
    pub fn trace(&self) -> Tensor {
        if self.rank() < 2 {
            fail(OpError::Rank { op: "trace", want: "at least 2", shape: self.shape().clone() });
        }
        self.diagonal(0, -2, -1).sum(-1)
    }

    /// The difference of neighbours along an axis, taken `n` times; each time the axis gets one shorter.
    #[track_caller]
    pub fn diff(&self, n: usize, axis: isize) -> Tensor {
        let at = or_fail(self.shape().axis(axis).in_op("diff"));
        if self.rank() == 0 {
            fail(OpError::Rank { op: "diff", want: "at least 1", shape: self.shape().clone() });
        }
        (0..n).fold(self.clone(), |x, _| x.but_first(at) - x.but_last(at))
    }
}

/// The p-th root of s where s is not 0, and 0 with a gradient of 0 where it is: the slope of a root is infinite there.
#[track_caller]
pub(crate) fn root_or_zero(s: &Tensor, p: f64) -> Tensor {
    let positive = s.ne(0.0);
    let s = positive.where_(s, 1.0);
    // No closure decides which: what it applies would not know the user's line.
    let root = if p == 2.0 { s.sqrt() } else { s.powf(1.0 / p) };
    positive.where_(&root, 0.0)
}

#[cfg(test)]
mod tests {
    use crate::{Tensor, grad};

    #[test]
    fn norm_of_zeros_has_gradient_zero() {
        let x = Tensor::from([0.0f32, 0.0]);
        for p in [1.0, 2.0, 3.0] {
            assert_eq!(grad(|x| x.vector_norm(p, ()))(&x).to_vec::<f32>(), [0.0, 0.0], "p = {p}");
        }
    }

    #[test]
    fn norm_in_half_precision_does_not_overflow_inside() {
        let x = Tensor::from([300.0f32, 400.0]).to_dtype(thalweg_core::DType::F16);
        assert_eq!(x.vector_norm(2.0, ()).item::<half::f16>().to_f32(), 500.0);
    }

    #[test]
    fn extremes_of_a_scalar() {
        let (value, index) = Tensor::scalar(3.0).max_dim(0);
        assert_eq!((value.item::<f32>(), index.item::<i64>()), (3.0, 0));
    }
}
