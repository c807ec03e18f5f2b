//! Mixed precision: weights in single precision, products in a narrower one.

use std::cell::Cell;

use thalweg_core::DType;
use thalweg_tensor::Tensor;

thread_local! {
    static COMPUTE: Cell<Option<DType>> = const { Cell::new(None) };
}

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
    struct Restore(Option<DType>);
    impl Drop for Restore {
        fn drop(&mut self) {
            COMPUTE.set(self.0);
        }
    }
    assert!(dtype.is_float(), "autocast: {dtype} is no float");
    let _restore = Restore(COMPUTE.replace(Some(dtype)));
    f()
}

/// An operand of a product, in the dtype of products.
#[track_caller]
pub(crate) fn narrow(x: &Tensor) -> Tensor {
    match COMPUTE.get() {
        Some(dtype) if x.dtype().is_float() => x.to_dtype(dtype),
        _ => x.clone(),
    }
}

/// An operand of a sum over many numbers, in at least single precision.
#[track_caller]
pub(crate) fn wide(x: &Tensor) -> Tensor {
    match (COMPUTE.get(), x.dtype()) {
        (Some(_), DType::F16 | DType::BF16) => x.to_dtype(DType::F32),
        _ => x.clone(),
    }
}
