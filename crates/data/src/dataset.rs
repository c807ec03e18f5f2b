//! What a data set is: a number of samples, and batches of any of them.

use std::sync::Arc;

use crate::batches::Batches;
use crate::draw::Draw;
use crate::transform::{Inputs, Transform, Transformed};

/// Samples that can be fetched in any order, in batches. Clones share the samples.
///
/// A batch is whatever the model takes, mostly `(x, y)`. Where fetching can fail the batch is a
/// `Result`, so that sets in memory need no `?`.
pub trait Dataset: Clone + Send + Sync + 'static {
    /// What one step of training gets.
    type Batch: Send + 'static;

    /// Number of samples.
    fn len(&self) -> usize;

    /// Whether there is nothing to learn from.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The batch of these samples, in this order. There are none of them when a batch is smaller than
    /// the number of ranks that share it.
    fn batch(&self, draws: &[Draw]) -> Self::Batch;

    /// Threads that fetch ahead unless [`Batches::workers`] says otherwise: none where fetching costs less
    /// than handing over.
    fn default_workers(&self) -> usize {
        1
    }

    /// Streams of random numbers that fetching already uses.
    fn streams(&self) -> u32 {
        0
    }

    /// All samples in batches of this size, in the order in which they are stored.
    fn batches(&self, size: usize) -> Batches<Self> {
        Batches::new(self.clone(), size)
    }

    /// The same samples with their inputs changed.
    fn transformed<T: Transform>(self, transform: T) -> Transformed<Self, T>
    where
        Self::Batch: Inputs,
    {
        Transformed::new(self, transform)
    }
}

/// A data set of `len` samples that a closure fetches.
///
/// ```
/// use thalweg_data::{Dataset, Draw, from_fn};
/// use thalweg_tensor::Tensor;
/// let squares = from_fn(10, |draws: &[Draw]| {
///     Tensor::from(draws.iter().map(|d| (d.index * d.index) as i64).collect::<Vec<_>>())
/// });
/// let last = squares.batches(4).into_iter().last().unwrap();
/// assert_eq!(last.to_vec::<i64>(), [64, 81]);
/// ```
pub fn from_fn<F, B>(len: usize, fetch: F) -> FromFn<F>
where
    F: Fn(&[Draw]) -> B + Send + Sync + 'static,
    B: Send + 'static,
{
    FromFn { len, fetch: Arc::new(fetch) }
}

/// The data set that [`from_fn`] makes.
pub struct FromFn<F> {
    len: usize,
    fetch: Arc<F>,
}

impl<F> Clone for FromFn<F> {
    fn clone(&self) -> Self {
        Self { len: self.len, fetch: self.fetch.clone() }
    }
}

impl<F, B> Dataset for FromFn<F>
where
    F: Fn(&[Draw]) -> B + Send + Sync + 'static,
    B: Send + 'static,
{
    type Batch = B;
    fn len(&self) -> usize {
        self.len
    }
    fn batch(&self, draws: &[Draw]) -> B {
        (self.fetch)(draws)
    }
}
