//! Attention, y = softmax(q kᵀ · scale + mask) v for each head, without the (queries, keys) matrix in memory.
//!
//! Queries go in blocks of rows. The forward pass runs over the keys block by block with a running
//! maximum and sum (Milakov and Gimelshein 2018; Dao et al. 2022); the backward pass makes the scores of its rows
//! anew. Memory beyond operands and results is linear in the number of keys. Blocks that a causal mask
//! hides are skipped. The cut into blocks depends on the shapes alone, so no bit depends on threads.

mod backward;
mod forward;
mod mask;
#[cfg(test)]
mod tests;

pub use backward::{Gradients, attention_backward};
pub use forward::attention;
pub use mask::{Mask, MaskValues};

use crate::gemm::MatRef;

/// Query rows of a block: a multiple of the tile heights of all instruction sets.
const ROWS: usize = 48;

/// What the scores are multiplied with and which of them count.
#[derive(Debug, Clone, Copy)]
pub struct Scores<'a> {
    /// The factor.
    pub scale: f32,
    /// Whether query i sees only the keys 0 ..= i.
    pub causal: bool,
    /// What else decides. A query that then sees nothing gets zeros.
    pub mask: Option<Mask<'a>>,
}

impl Scores<'_> {
    /// How many of the keys query `row` sees.
    fn visible(&self, row: usize, n_keys: usize) -> usize {
        if self.causal { n_keys.min(row + 1) } else { n_keys }
    }
}

/// Equal matrices of f32, one per head, with dense rows. Heads may lie anywhere, as several axes with
/// sizes and strides say, the last running fastest.
#[derive(Debug, Clone, Copy)]
pub struct Heads<'a> {
    data: &'a [f32],
    lead: &'a [(usize, usize)],
    rows: usize,
    cols: usize,
    row_stride: usize,
}

impl<'a> Heads<'a> {
    /// `data` from the first element of the first head on; `lead` holds size and stride of each leading axis.
    /// Bounds are checked when a head is taken out.
    pub fn new(
        data: &'a [f32],
        lead: &'a [(usize, usize)],
        (rows, cols): (usize, usize),
        row_stride: usize,
    ) -> Self {
        Self { data, lead, rows, cols, row_stride }
    }

    fn len(&self) -> usize {
        self.lead.iter().map(|(size, _)| size).product()
    }

    /// Rows `rows` of one head. Panics if they lie outside the data.
    fn part(&self, head: usize, rows: std::ops::Range<usize>) -> MatRef<'a, f32> {
        assert!(rows.end <= self.rows);
        let at = head_at(self.lead, head) + rows.start * self.row_stride;
        let from = if rows.is_empty() || self.cols == 0 { 0 } else { at };
        MatRef::new(&self.data[from..], rows.len(), self.cols, self.row_stride, 1)
    }

    fn get(&self, head: usize) -> MatRef<'a, f32> {
        self.part(head, 0..self.rows)
    }
}

/// Where a head begins, by sizes and strides of the leading axes.
fn head_at(lead: &[(usize, usize)], head: usize) -> usize {
    let axis = |(rest, at): (usize, usize), &(size, stride): &(usize, usize)| {
        (rest / size, at + rest % size * stride)
    };
    lead.iter().rev().fold((head, 0), axis).1
}

/// Panics unless the operands belong together; returns heads, queries, keys, width and width of the values.
fn sizes(q: &Heads, k: &Heads, v: &Heads) -> [usize; 5] {
    assert!(q.len() == k.len() && k.len() == v.len(), "attention: operands differ in heads");
    assert!(q.cols == k.cols && k.rows == v.rows, "attention: widths or numbers of keys differ");
    [q.len(), q.rows, k.rows, q.cols, v.cols]
}

/// Copies a matrix times a factor to dense rows.
fn scaled(x: MatRef<'_, f32>, by: f32, to: &mut [f32]) {
    for (i, to) in to.chunks_exact_mut(x.cols().max(1)).take(x.rows()).enumerate() {
        to.iter_mut().zip(x.row(i)).for_each(|(to, x)| *to = x * by);
    }
}
