//! Rows of which most elements are zero.

use std::sync::Arc;

use thalweg_core::{Buffer, DType};
use thalweg_tensor::Tensor;

use crate::dataset::Dataset;
use crate::draw::Draw;

/// Labelled sparse rows in memory. As a data set it gives dense batches `(x, y)` in f32;
/// [`Sparse::csr`] gives the same rows without their zeros.
#[derive(Debug, Clone)]
pub struct Sparse(Arc<Rows>);

#[derive(Debug, Clone)]
struct Rows {
    n_features: usize,
    labels: Vec<f32>,
    starts: Vec<usize>, // (rows + 1), into the two below
    indices: Vec<u32>,
    values: Vec<f32>,
}

/// Some rows, compressed: row `i` has the entries `starts[i]..starts[i + 1]`, the last row all from its start.
#[derive(Debug, Clone)]
pub struct Csr {
    /// Where each row starts, i64, (rows).
    pub starts: Tensor,
    /// The feature of each entry, i64, (entries).
    pub indices: Tensor,
    /// The value of each entry, f32, (entries).
    pub values: Tensor,
    /// The labels, f32, (rows).
    pub labels: Tensor,
}

impl Sparse {
    pub(crate) fn new(n_features: usize) -> Self {
        let rows =
            Rows { n_features, labels: Vec::new(), starts: vec![0], indices: Vec::new(), values: Vec::new() };
        Self(Arc::new(rows))
    }

    pub(crate) fn push(&mut self, label: f32, row: &[(u32, f32)]) {
        let rows = Arc::make_mut(&mut self.0);
        rows.labels.push(label);
        for &(index, value) in row {
            rows.n_features = rows.n_features.max(index as usize + 1);
            rows.indices.push(index);
            rows.values.push(value);
        }
        rows.starts.push(rows.indices.len());
    }

    /// Length of a dense row.
    pub fn n_features(&self) -> usize {
        self.0.n_features
    }

    /// The labels of all rows.
    pub fn labels(&self) -> &[f32] {
        &self.0.labels
    }

    /// The features and values of one row, which must exist.
    pub fn row(&self, row: usize) -> (&[u32], &[f32]) {
        let range = self.0.starts[row]..self.0.starts[row + 1];
        (&self.0.indices[range.clone()], &self.0.values[range])
    }

    /// The first `n` rows, or all when there are fewer.
    pub fn first(&self, n: usize) -> Self {
        if n >= self.0.labels.len() {
            return self.clone();
        }
        let mut first = Self::new(self.n_features());
        for row in 0..n {
            let (indices, values) = self.row(row);
            let entries: Vec<(u32, f32)> = indices.iter().copied().zip(values.iter().copied()).collect();
            first.push(self.0.labels[row], &entries);
        }
        first
    }

    /// Number of entries that are stored.
    pub fn n_entries(&self) -> usize {
        self.0.values.len()
    }

    /// These rows without their zeros: what `embedding_bag` takes.
    pub fn csr(&self, draws: &[Draw]) -> Csr {
        let (mut starts, mut indices, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for draw in draws {
            starts.push(indices.len() as i64);
            let (i, v) = self.row(draw.index);
            indices.extend(i.iter().map(|&i| i64::from(i)));
            values.extend_from_slice(v);
        }
        Csr {
            starts: Tensor::from(starts),
            indices: Tensor::from(indices),
            values: Tensor::from(values),
            labels: self.labels_of(draws),
        }
    }

    fn labels_of(&self, draws: &[Draw]) -> Tensor {
        Tensor::from(draws.iter().map(|d| self.0.labels[d.index]).collect::<Vec<_>>())
    }
}

impl Dataset for Sparse {
    type Batch = (Tensor, Tensor);

    fn len(&self) -> usize {
        self.0.labels.len()
    }

    fn batch(&self, draws: &[Draw]) -> (Tensor, Tensor) {
        let width = self.n_features();
        let mut x = Buffer::zeros(DType::F32, draws.len() * width);
        let flat = x.as_mut_slice::<f32>();
        for (k, draw) in draws.iter().enumerate() {
            let (indices, values) = self.row(draw.index);
            for (&i, &v) in indices.iter().zip(values) {
                flat[k * width + i as usize] = v;
            }
        }
        (Tensor::from_buffer(x, [draws.len(), width]), self.labels_of(draws))
    }

    fn default_workers(&self) -> usize {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_and_compressed_batches_hold_the_same_rows() {
        let mut s = Sparse::new(4);
        s.push(1.0, &[(0, 5.0), (3, 6.0)]);
        s.push(2.0, &[]);
        s.push(3.0, &[(2, 7.0)]);
        let draws: Vec<Draw> = [2, 0, 1].iter().map(|&i| Draw::new(0, 0, i)).collect();
        let (x, y) = s.batch(&draws);
        assert_eq!(x.to_vec2::<f32>(), [[0.0, 0.0, 7.0, 0.0], [5.0, 0.0, 0.0, 6.0], [0.0; 4]]);
        let c = s.csr(&draws);
        assert_eq!((c.starts.to_vec::<i64>(), c.indices.to_vec::<i64>()), (vec![0, 1, 3], vec![2, 0, 3]));
        assert_eq!(c.labels.to_vec::<f32>(), y.to_vec::<f32>());
        let first = s.first(2);
        assert_eq!((first.len(), first.n_features(), first.row(0)), (2, 4, s.row(0)));
        assert_eq!(s.first(9).len(), 3);
    }
}
