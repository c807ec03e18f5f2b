//! Inputs and targets in memory.

use std::ops::Range;

use thalweg_core::DType;
use thalweg_tensor::Tensor;

use crate::dataset::Dataset;
use crate::draw::Draw;
use crate::error::DataError;
use crate::order::permutation;
use crate::rows::gather;

/// Inputs `x` and targets `y` in memory; row `i` of both is sample `i`.
///
/// ```
/// use thalweg_data::{Dataset, Examples};
/// use thalweg_tensor::Tensor;
/// let data = Examples::new(Tensor::from([[1.0f32], [2.0], [3.0]]), Tensor::from([0i64, 1, 0]))?;
/// let (x, y) = data.batches(2).into_iter().next().unwrap();
/// assert_eq!((x.to_vec::<f32>(), y.to_vec::<i64>()), (vec![1.0, 2.0], vec![0, 1]));
/// # Ok::<(), thalweg_data::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Examples {
    /// The inputs.
    pub x: Tensor,
    /// The targets.
    pub y: Tensor,
}

impl Examples {
    /// Refuses tensors with different numbers of rows, or without rows.
    pub fn new(x: Tensor, y: Tensor) -> Result<Self, DataError> {
        match (x.shape().first(), y.shape().first()) {
            (Some(a), Some(b)) if a == b => Ok(Self { x: x.contiguous(), y: y.contiguous() }),
            _ => Err(DataError::Rows { x: x.shape().clone(), y: y.shape().clone() }),
        }
    }

    /// The samples in this range, which must exist. Nothing is copied.
    #[track_caller]
    pub fn rows(&self, range: Range<usize>) -> Self {
        Self { x: self.x.i(range.clone()), y: self.y.i(range) }
    }

    /// The samples at these places, which must exist, in this order.
    pub fn picked(&self, indices: &[usize]) -> Self {
        let draws: Vec<Draw> = indices.iter().map(|&i| Draw::new(0, 0, i)).collect();
        let (x, y) = self.batch(&draws);
        Self { x, y }
    }

    /// A random share of the samples, rounded down, and the rest: for training and validation.
    pub fn split(&self, share: f64, seed: u64) -> (Self, Self) {
        let order: Vec<usize> = permutation(seed, 0, self.len()).into_iter().map(|i| i as usize).collect();
        let at = (self.len() as f64 * share.clamp(0.0, 1.0)) as usize;
        (self.picked(&order[..at]), self.picked(&order[at..]))
    }

    /// Mean and standard deviation of all elements of `x`, for [`Normalize`](crate::Normalize).
    pub fn mean_std(&self) -> (f32, f32) {
        let x = self.x.to_dtype(DType::F32).contiguous();
        let (n, values) = (x.numel() as f64, x.as_slice::<f32>().expect("made contiguous above"));
        let mean = values.iter().map(|&v| f64::from(v)).sum::<f64>() / n;
        let variance = values.iter().map(|&v| (f64::from(v) - mean).powi(2)).sum::<f64>() / n;
        (mean as f32, variance.sqrt() as f32)
    }
}

impl Dataset for Examples {
    type Batch = (Tensor, Tensor);

    fn len(&self) -> usize {
        self.x.shape()[0]
    }

    fn batch(&self, draws: &[Draw]) -> (Tensor, Tensor) {
        (gather(&self.x, draws), gather(&self.y, draws))
    }

    /// Copying a few rows takes less time than waking a thread.
    fn default_workers(&self) -> usize {
        0
    }
}
