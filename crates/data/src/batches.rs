//! Iterating over a data set: order, batch size, share of the work, threads.

use std::ops::Range;
use std::sync::Arc;

use crate::dataset::Dataset;
use crate::draw::{Draw, Use, key};
use crate::error::DataError;
use crate::order::{Position, part, permutation};
use crate::prefetch::Prefetch;

/// What happens to the last samples of an epoch when they are fewer than a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Last {
    /// They are a smaller batch.
    Keep,
    /// They are left out of this epoch.
    Drop,
}

/// One epoch of a data set in batches; iterate over it, or over a reference to it.
///
/// ```
/// use thalweg_data::{Dataset, iris};
/// let batches = iris()?.data.batches(32).seed(1).shuffled(0);
/// let mut epoch = batches.clone().into_iter();
/// let (first, _) = epoch.next().unwrap();
/// let (second, _) = epoch.next().unwrap();
/// let here = epoch.position(); // to be saved with the model
///
/// let mut resumed = batches.at(here)?.into_iter();
/// assert_eq!(resumed.position().sample, 64);
/// let (third, _) = resumed.next().unwrap();
/// assert_eq!(third.to_vec::<f32>(), epoch.next().unwrap().0.to_vec::<f32>());
/// # Ok::<(), thalweg_data::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Batches<D> {
    data: D,
    size: usize,
    shuffle: bool,
    seed: u64,
    epoch: u64,
    start: usize,
    last: Last,
    rank: usize,
    world: usize,
    workers: usize,
    ahead: usize,
}

impl<D: Dataset> Batches<D> {
    /// Panics when `size` is 0.
    #[track_caller]
    pub(crate) fn new(data: D, size: usize) -> Self {
        assert!(size > 0, "batches: a batch needs at least one sample");
        let workers = data.default_workers();
        Self {
            data,
            size,
            shuffle: false,
            seed: 0,
            epoch: 0,
            start: 0,
            last: Last::Keep,
            rank: 0,
            world: 1,
            workers,
            ahead: 2,
        }
    }

    /// In random order, another one in each epoch.
    pub fn shuffled(mut self, epoch: u64) -> Self {
        (self.shuffle, self.epoch, self.start) = (true, epoch, 0);
        self
    }

    /// This epoch from its start, shuffled only if it was before.
    pub fn epoch(mut self, epoch: u64) -> Self {
        (self.epoch, self.start) = (epoch, 0);
        self
    }

    /// Another series of random orders and transforms.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// What becomes of the last samples of an epoch when they are fewer than a batch.
    pub fn last(mut self, last: Last) -> Self {
        self.last = last;
        self
    }

    /// The share of one rank in the work of `world`: its part of every batch. All ranks together see the
    /// batches that one rank alone would see, each sample once, and all take the same number of steps;
    /// a rank's part of a batch that is smaller than `world` may be empty.
    ///
    /// Panics when the rank is not below `world`.
    #[track_caller]
    pub fn shard(mut self, rank: usize, world: usize) -> Self {
        assert!(rank < world, "shard: rank {rank} does not exist among {world}");
        (self.rank, self.world) = (rank, world);
        self
    }

    /// Threads that fetch batches ahead; with 0 they are fetched when asked for. The batches are the same.
    pub fn workers(mut self, workers: usize) -> Self {
        self.workers = workers;
        self
    }

    /// Finished batches that may wait per thread; 2 unless said otherwise.
    pub fn ahead(mut self, batches: usize) -> Self {
        self.ahead = batches.max(1);
        self
    }

    /// Goes on where a saved run stood. Refused when the data set has another number of samples.
    pub fn at(mut self, position: Position) -> Result<Self, DataError> {
        let n = self.data.len();
        if position.samples != n || position.sample > n {
            return Err(DataError::Position { position, samples: n });
        }
        (self.seed, self.epoch, self.start) = (position.seed, position.epoch, position.sample);
        Ok(self)
    }

    /// Where iteration would begin.
    pub fn position(&self) -> Position {
        Position { seed: self.seed, epoch: self.epoch, sample: self.start, samples: self.data.len() }
    }

    /// Batches from here to the end of the epoch.
    pub fn steps(&self) -> usize {
        let left = self.data.len() - self.start;
        match self.last {
            Last::Keep => left.div_ceil(self.size),
            Last::Drop => left / self.size,
        }
    }

    /// The samples of a batch, over all ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The data set behind it.
    pub fn dataset(&self) -> &D {
        &self.data
    }

    /// The samples of batch `step`, over all ranks, as positions in the order.
    fn span(&self, step: usize) -> Range<usize> {
        let from = self.start + step * self.size;
        from..self.data.len().min(from + self.size)
    }
}

/// An epoch with its order settled; threads share it.
pub(crate) struct Epoch<D> {
    pub(crate) batches: Batches<D>,
    order: Option<Vec<u32>>,
    key: [u32; 2],
}

impl<D: Dataset> Epoch<D> {
    fn new(batches: Batches<D>) -> Self {
        let order = batches.shuffle.then(|| permutation(batches.seed, batches.epoch, batches.data.len()));
        let key = key(batches.seed, batches.epoch, Use::Draws);
        Self { batches, order, key }
    }

    /// This rank's part of batch `step`.
    pub(crate) fn fetch(&self, step: usize) -> D::Batch {
        let b = &self.batches;
        let at = |i: usize| self.order.as_ref().map_or(i, |o| o[i] as usize);
        let draws: Vec<Draw> =
            part(b.span(step), b.rank, b.world).map(|i| Draw::with_key(self.key, at(i))).collect();
        b.data.batch(&draws)
    }
}

impl<D: Dataset> IntoIterator for Batches<D> {
    type Item = D::Batch;
    type IntoIter = Loader<D>;
    fn into_iter(self) -> Loader<D> {
        let (steps, workers, ahead) = (self.steps(), self.workers, self.ahead);
        let epoch = Arc::new(Epoch::new(self));
        let prefetch = (workers > 0).then(|| Prefetch::start(&epoch, workers.min(steps), ahead));
        Loader { epoch, step: 0, steps, prefetch }
    }
}

impl<D: Dataset> IntoIterator for &Batches<D> {
    type Item = D::Batch;
    type IntoIter = Loader<D>;
    fn into_iter(self) -> Loader<D> {
        self.clone().into_iter()
    }
}

/// The iteration itself. Dropping it ends its threads.
pub struct Loader<D: Dataset> {
    epoch: Arc<Epoch<D>>,
    step: usize,
    steps: usize,
    prefetch: Option<Prefetch<D::Batch>>,
}

impl<D: Dataset> Loader<D> {
    /// Where a run stands that has used every batch handed out so far. Batches that threads have fetched
    /// ahead do not count.
    pub fn position(&self) -> Position {
        let b = &self.epoch.batches;
        let sample = b.data.len().min(b.start + self.step * b.size);
        Position { sample, ..b.position() }
    }
}

impl<D: Dataset> Iterator for Loader<D> {
    type Item = D::Batch;

    fn next(&mut self) -> Option<D::Batch> {
        if self.step == self.steps {
            return None;
        }
        let batch = match &mut self.prefetch {
            Some(prefetch) => prefetch.take(self.step),
            None => self.epoch.fetch(self.step),
        };
        self.step += 1;
        Some(batch)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.steps - self.step, Some(self.steps - self.step))
    }
}

impl<D: Dataset> ExactSizeIterator for Loader<D> {}
