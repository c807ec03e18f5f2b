//! How good predictions are.

use thalweg_core::DType;
use thalweg_tensor::Tensor;

/// The share of rows whose largest score stands at the target. scores: (…, classes), targets: (…).
///
/// ```
/// use thalweg_nn::accuracy;
/// use thalweg_tensor::Tensor;
/// let scores = Tensor::from([[0.1f32, 0.9], [0.8, 0.2]]);
/// assert_eq!(accuracy(&scores, &Tensor::from([1i64, 1])), 0.5);
/// ```
#[track_caller]
pub fn accuracy(scores: &Tensor, targets: &Tensor) -> f64 {
    hit_rate(scores, targets).item()
}

/// [`accuracy`] as a scalar tensor: for functions that are compiled.
#[track_caller]
pub fn hit_rate(scores: &Tensor, targets: &Tensor) -> Tensor {
    scores.argmax(-1).eq(&targets.to_dtype(DType::I64)).to_dtype(DType::F64).mean(())
}
