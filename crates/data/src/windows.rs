//! Pieces of a long sequence of tokens, for language models.

use std::sync::Arc;

use thalweg_tensor::Tensor;

use crate::dataset::Dataset;
use crate::draw::Draw;
use crate::error::DataError;

/// Windows of `context` tokens, one every `stride` tokens; the target of each token is the one after it. A batch
/// is `(x, y)`, both i64 of shape (N, context).
///
/// With a stride of 1 every place of the text is a sample; with a stride of `context` every token is seen once.
///
/// ```
/// use thalweg_data::{Chars, Dataset, Windows};
/// let text = "in the valley";
/// let chars = Chars::of(text);
/// let data = Windows::new(chars.encode(text)?, 4, 1)?;
/// assert_eq!(data.len(), 13 - 4);
/// let (x, y) = data.batches(2).shuffled(0).into_iter().next().unwrap();
/// assert_eq!(x.i((.., 1..)).to_vec::<i64>(), y.i((.., ..3)).to_vec::<i64>());
/// # Ok::<(), thalweg_data::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Windows {
    tokens: Arc<[u32]>,
    context: usize,
    stride: usize,
}

impl Windows {
    /// Refuses a text that has no window, and sizes of 0.
    pub fn new(tokens: impl Into<Arc<[u32]>>, context: usize, stride: usize) -> Result<Self, DataError> {
        let tokens = tokens.into();
        if context == 0 || stride == 0 {
            let need = "context and stride must be positive".to_owned();
            return Err(DataError::Range { what: "window size", got: 0, need });
        }
        if tokens.len() <= context {
            let need = format!("a context of {context} needs a text of at least {}", context + 1);
            return Err(DataError::Range { what: "text length", got: tokens.len(), need });
        }
        Ok(Self { tokens, context, stride })
    }

    /// All tokens.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }
}

impl Dataset for Windows {
    type Batch = (Tensor, Tensor);

    fn len(&self) -> usize {
        (self.tokens.len() - self.context - 1) / self.stride + 1
    }

    fn batch(&self, draws: &[Draw]) -> (Tensor, Tensor) {
        let shifted = |by: usize| {
            let rows = draws.iter().flat_map(|d| {
                let from = d.index * self.stride + by;
                self.tokens[from..from + self.context].iter().map(|&t| i64::from(t))
            });
            Tensor::from_vec(rows.collect::<Vec<_>>(), [draws.len(), self.context])
        };
        (shifted(0), shifted(1))
    }

    fn default_workers(&self) -> usize {
        0
    }
}
