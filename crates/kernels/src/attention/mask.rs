//! Masks: which scores count, or what is added to them. Read where they lie, so that one that is the same for
//! many heads, queries or keys is never spread out.

use std::ops::Range;

use super::head_at;

/// A mask over (heads, queries, keys). Heads lie as those of [`Heads`](super::Heads), of the same sizes; an axis along
/// which the mask is the same has the stride 0.
#[derive(Debug, Clone, Copy)]
pub struct Mask<'a> {
    /// From the first element of the first head on.
    pub values: MaskValues<'a>,
    /// Size and stride of each leading axis.
    pub lead: &'a [(usize, usize)],
    /// From one query to the next.
    pub row_stride: usize,
    /// From one key to the next.
    pub col_stride: usize,
}

/// What a mask holds.
#[derive(Debug, Clone, Copy)]
pub enum MaskValues<'a> {
    /// Whether a score counts.
    Seen(&'a [bool]),
    /// What is added to a score.
    Added(&'a [f32]),
}

impl Mask<'_> {
    /// Changes the scores of query `row` with the keys `keys`. Panics outside of the mask.
    pub(super) fn apply(&self, head: usize, row: usize, keys: Range<usize>, scores: &mut [f32]) {
        let scores = &mut scores[..keys.len()];
        if scores.is_empty() {
            return;
        }
        let at = head_at(self.lead, head) + row * self.row_stride + keys.start * self.col_stride;
        match (self.values, self.col_stride) {
            (MaskValues::Added(x), 0) => scores.iter_mut().for_each(|s| *s += x[at]),
            (MaskValues::Added(x), 1) => {
                scores.iter_mut().zip(&x[at..][..keys.len()]).for_each(|(s, x)| *s += x);
            }
            (MaskValues::Added(x), by) => {
                scores.iter_mut().zip(x[at..].iter().step_by(by)).for_each(|(s, x)| *s += x);
            }
            (MaskValues::Seen(x), 0) => {
                if !x[at] {
                    scores.fill(f32::NEG_INFINITY);
                }
            }
            (MaskValues::Seen(x), 1) => {
                let x = &x[at..][..keys.len()];
                scores.iter_mut().zip(x).for_each(|(s, x)| *s = if *x { *s } else { f32::NEG_INFINITY });
            }
            (MaskValues::Seen(x), by) => {
                let x = x[at..].iter().step_by(by);
                scores.iter_mut().zip(x).for_each(|(s, x)| *s = if *x { *s } else { f32::NEG_INFINITY });
            }
        }
    }
}
