//! Vectors for whole numbers: tokens and positions.

use thalweg_derive::Module;
use thalweg_tensor::{Param, Rng, Tensor};

use crate::module::Layer;
use crate::summary::Frame;

/// A vector for each of `rows` whole numbers: (…) → (…, width).
///
/// ```
/// use thalweg_nn::{Embedding, Layer};
/// use thalweg_tensor::{Rng, Tensor};
/// let table = Embedding::new(10, 4, &mut Rng::seed(0));
/// assert_eq!(table.forward(&Tensor::from([[1i64, 2, 9]])).shape()[..], [1, 3, 4]);
/// ```
#[derive(Debug, Module)]
pub struct Embedding {
    /// (rows, width).
    pub weight: Param,
    #[module(skip)]
    padding: Option<usize>,
}

impl Embedding {
    /// Rows of standard normal numbers.
    pub fn new(rows: usize, width: usize, rng: &mut Rng) -> Self {
        Self { weight: Param::new("weight", rng.normal([rows, width], 0.0, 1.0)), padding: None }
    }

    /// A table whose row `padding` stands for no token: it is zero and gets no gradient.
    #[track_caller]
    pub fn with_padding(rows: usize, width: usize, padding: usize, rng: &mut Rng) -> Self {
        assert!(padding < rows, "embedding: padding {padding} is none of {rows} rows");
        let table = Self { padding: Some(padding), ..Self::new(rows, width, rng) };
        let index = Tensor::from([padding as i64]);
        table.weight.set(table.weight.get().index_fill(0, &index, 0.0));
        table
    }
}

impl Layer for Embedding {
    #[track_caller]
    fn forward(&self, index: &Tensor) -> Tensor {
        let frame = Frame::open();
        frame.close(self, self.weight.get().embedding(index, self.padding))
    }
}

/// A learned vector for each position, added to a sequence (…, time, width).
#[derive(Debug, Module)]
pub struct LearnedPositions {
    /// (longest, width).
    pub weight: Param,
}

impl LearnedPositions {
    /// For sequences of at most `longest` steps; starts normal with a standard deviation of 0.02.
    pub fn new(longest: usize, width: usize, rng: &mut Rng) -> Self {
        Self { weight: Param::new("weight", rng.normal([longest, width], 0.0, 0.02)) }
    }

    /// For a piece of a sequence that starts at position `start`.
    #[track_caller]
    pub fn forward_from(&self, x: &Tensor, start: usize) -> Tensor {
        let (time, longest) = (x.size(-2), self.weight.meta().shape[0]);
        assert!(
            start + time <= longest,
            "learned_positions: {time} steps from {start} on pass the longest sequence, {longest}"
        );
        x + self.weight.get().narrow(0, start, time)
    }
}

impl Layer for LearnedPositions {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let frame = Frame::open();
        frame.close(self, self.forward_from(x, 0))
    }
}
