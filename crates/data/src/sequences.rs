//! Sequences of different lengths, padded to the longest of their batch.

use std::sync::Arc;

use thalweg_tensor::Tensor;

use crate::dataset::Dataset;
use crate::draw::Draw;
use crate::error::DataError;

/// A batch of sequences.
#[derive(Debug, Clone)]
pub struct Padded {
    /// The tokens, i64, (N, longest), with padding behind the shorter ones.
    pub tokens: Tensor,
    /// The length of each, i64, (N).
    pub lengths: Tensor,
    /// Where there are tokens and no padding, bool, (N, longest).
    pub mask: Tensor,
}

/// Sequences of tokens with a target each. A batch is `(Padded, targets)`.
///
/// ```
/// use thalweg_data::{Dataset, Sequences};
/// let data = Sequences::new(vec![vec![5, 6, 7], vec![8]], vec![1, 0], 0)?;
/// let (x, y) = data.batches(2).into_iter().next().unwrap();
/// assert_eq!(x.tokens.to_vec2::<i64>(), [[5, 6, 7], [8, 0, 0]]);
/// assert_eq!(x.mask.to_vec::<bool>(), [true, true, true, true, false, false]);
/// assert_eq!((x.lengths.to_vec::<i64>(), y.to_vec::<i64>()), (vec![3, 1], vec![1, 0]));
/// # Ok::<(), thalweg_data::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Sequences(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    sequences: Vec<Vec<u32>>,
    targets: Vec<i64>,
    padding: i64,
}

impl Sequences {
    /// Refuses another number of targets than of sequences. `padding` is the token behind short ones.
    pub fn new(sequences: Vec<Vec<u32>>, targets: Vec<i64>, padding: i64) -> Result<Self, DataError> {
        if sequences.len() != targets.len() {
            return Err(DataError::Rows { x: [sequences.len()].into(), y: [targets.len()].into() });
        }
        Ok(Self(Arc::new(Inner { sequences, targets, padding })))
    }

    /// One sequence, which must exist.
    pub fn sequence(&self, index: usize) -> &[u32] {
        &self.0.sequences[index]
    }
}

impl Dataset for Sequences {
    type Batch = (Padded, Tensor);

    fn len(&self) -> usize {
        self.0.sequences.len()
    }

    fn batch(&self, draws: &[Draw]) -> (Padded, Tensor) {
        let rows: Vec<&[u32]> = draws.iter().map(|d| self.sequence(d.index)).collect();
        let longest = rows.iter().map(|r| r.len()).max().unwrap_or(0);
        let mut tokens = Vec::with_capacity(rows.len() * longest);
        let mut mask = Vec::with_capacity(tokens.capacity());
        for row in &rows {
            let pad = longest - row.len();
            tokens.extend(row.iter().map(|&t| i64::from(t)).chain(std::iter::repeat_n(self.0.padding, pad)));
            mask.extend(row.iter().map(|_| true).chain(std::iter::repeat_n(false, pad)));
        }
        let shape = [rows.len(), longest];
        let padded = Padded {
            tokens: Tensor::from_vec(tokens, shape),
            lengths: Tensor::from(rows.iter().map(|r| r.len() as i64).collect::<Vec<_>>()),
            mask: Tensor::from_vec(mask, shape),
        };
        (padded, Tensor::from(draws.iter().map(|d| self.0.targets[d.index]).collect::<Vec<_>>()))
    }

    fn default_workers(&self) -> usize {
        0
    }
}
