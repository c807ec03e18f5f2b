//! Mixed precision: weights in single precision, products in a narrower one.

use thalweg_core::DType;
use thalweg_tensor::Tensor;
use thalweg_tensor::ambient::{Ambient, computing_in};

/// Runs `f` with the products of dense layers (those of attention among them), convolutions and recurrent
/// layers in a narrower dtype, usually bf16. Parameters stay as they are and so do their gradients; norms, softmax
/// and whatever else meets a single-precision number go on in single precision. Compute the loss of what
/// comes out in single precision too: `.to_dtype(F32)`.
///
/// ```
/// use thalweg_core::DType;
/// use thalweg_nn::{Layer, Linear, autocast};
/// use thalweg_tensor::{Rng, Tensor};
/// let layer = Linear::new(2, 2, &mut Rng::seed(0));
/// let y = autocast(DType::BF16, || layer.forward(&Tensor::from([[1.0f32, 2.0]])));
/// assert_eq!(y.dtype(), DType::BF16);
/// assert_eq!(y.sum(()).to_dtype(DType::F32).grad(&[&layer.weight])[0].dtype(), DType::F32);
/// ```
pub fn autocast<R>(dtype: DType, f: impl FnOnce() -> R) -> R {
    assert!(dtype.is_float(), "autocast: {dtype} is no float");
    computing_in(dtype, f)
}

/// An operand of a product, in the dtype of products.
#[track_caller]
pub(crate) fn narrow(x: &Tensor) -> Tensor {
    match Ambient::now().compute {
        Some(dtype) if x.dtype().is_float() => x.to_dtype(dtype),
        _ => x.clone(),
    }
}

/// An operand of a sum over many numbers, in at least single precision.
#[track_caller]
pub(crate) fn wide(x: &Tensor) -> Tensor {
    match (Ambient::now().compute, x.dtype()) {
        (Some(_), DType::F16 | DType::BF16) => x.to_dtype(DType::F32),
        _ => x.clone(),
    }
}
