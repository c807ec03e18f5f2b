//! Numbers in the memory of tensors: what is pulled becomes a parameter and a gradient is pushed without being copied.

use std::fmt;
use std::ops::Deref;

use thalweg_core::{Buffer, DType, Shape};
use thalweg_kernels::stream::split::par_chunks_mut;
use thalweg_tensor::Tensor;

/// Values that one thread copies at a time.
const PIECE: usize = 1 << 17;

/// Numbers that are shared, not copied.
///
/// ```
/// use thalweg_cluster::Values;
/// let values = Values::from(vec![1.0, 2.0, 3.0, 4.0]);
/// let tensor = values.to_tensor([2, 2]);
/// assert_eq!((tensor.sum(()) * 2.0).item::<f32>(), 20.0);
/// assert_eq!(Values::of(&tensor).as_ptr(), values.as_ptr());
/// ```
#[derive(Clone)]
pub struct Values(Buffer);

impl Values {
    /// So many zeros.
    pub fn zeros(len: usize) -> Self {
        Self(Buffer::zeros(DType::F32, len))
    }

    /// Memory for so many numbers, with whatever its last user left in it. That is cheaper than fresh memory, whose pages cost
    /// more than what is written into them.
    pub(crate) fn scratch(len: usize) -> Self {
        Self(Buffer::scratch(DType::F32, len))
    }

    /// The same for what a peer claims to send: fresh memory costs nothing before it is written.
    pub(crate) fn reserve(len: usize) -> Self {
        Self(Buffer::reserve(DType::F32, len))
    }

    /// The numbers of a tensor of `f32` in row-major order, without a copy where they lie so. Panics when it is of another dtype.
    #[track_caller]
    pub fn of(tensor: &Tensor) -> Self {
        assert!(tensor.dtype() == DType::F32, "values are f32, the tensor is {}", tensor.dtype());
        Self(tensor.to_buffer())
    }

    /// A tensor that shares this memory. Panics when the shape has another number of elements.
    #[track_caller]
    pub fn to_tensor(&self, shape: impl Into<Shape>) -> Tensor {
        Tensor::from_buffer(self.0.clone(), shape)
    }

    /// The numbers, to be overwritten, if nobody else has them.
    pub(crate) fn get_mut(&mut self) -> Option<&mut [f32]> {
        self.0.is_unique().then(|| self.0.as_mut_slice())
    }

    /// The numbers, to be overwritten; copied before that if somebody else has them.
    pub(crate) fn make_mut(&mut self) -> &mut [f32] {
        if !self.0.is_unique() {
            *self = Self::from(&**self);
        }
        self.0.as_mut_slice()
    }

    /// Memory in parts, each to be filled by itself, that can be [joined](Self::join). `None` when one would begin between two
    /// cache lines.
    pub(crate) fn side_by_side(lens: &[usize]) -> Option<Vec<Self>> {
        Buffer::side_by_side(DType::F32, lens).map(|parts| parts.into_iter().map(Self).collect())
    }

    /// The parts one behind the other. They are copied unless they lie so already and nobody else has them.
    pub(crate) fn join(parts: Vec<Self>) -> Self {
        match Buffer::join(parts.into_iter().map(|part| part.0).collect()) {
            Ok(whole) => Self(whole),
            Err(parts) => {
                let parts: Vec<&[f32]> = parts.iter().map(Buffer::as_slice).collect();
                let mut whole = Self::scratch(parts.iter().map(|part| part.len()).sum());
                lay_end_to_end(&parts, whole.make_mut());
                whole
            }
        }
    }
}

/// Copies the parts one behind the other into `whole`, which is as long as all of them.
fn lay_end_to_end(parts: &[&[f32]], whole: &mut [f32]) {
    let ends: Vec<usize> = parts
        .iter()
        .scan(0, |end, part| {
            *end += part.len();
            Some(*end)
        })
        .collect();
    par_chunks_mut(whole, PIECE, |start, mut out| {
        let mut at = start;
        for i in ends.partition_point(|end| *end <= start).. {
            if out.is_empty() {
                break;
            }
            let (place, rest) = out.split_at_mut(out.len().min(ends[i] - at));
            let from = at + parts[i].len() - ends[i];
            place.copy_from_slice(&parts[i][from..][..place.len()]);
            (at, out) = (at + place.len(), rest);
        }
    });
}

impl Deref for Values {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        self.0.as_slice()
    }
}

impl Default for Values {
    fn default() -> Self {
        Self::scratch(0)
    }
}

impl From<&[f32]> for Values {
    fn from(values: &[f32]) -> Self {
        Self(Buffer::from_slice(values))
    }
}

impl From<Vec<f32>> for Values {
    fn from(values: Vec<f32>) -> Self {
        Self::from(&values[..])
    }
}

impl FromIterator<f32> for Values {
    fn from_iter<I: IntoIterator<Item = f32>>(values: I) -> Self {
        Self::from(values.into_iter().collect::<Vec<f32>>())
    }
}

impl PartialEq for Values {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl fmt::Debug for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_of_any_lengths_come_one_behind_the_other() {
        for lens in [vec![], vec![0], vec![3, 0, 5], vec![PIECE + 1, 0, 7, 3 * PIECE, 1], vec![PIECE; 3]] {
            let n: usize = lens.iter().sum();
            let want: Vec<f32> = (0..n).map(|i| i as f32).collect();
            let mut rest = &want[..];
            let parts = lens.iter().map(|len| rest.split_off(..*len).expect("they add up").into());
            assert!(*Values::join(parts.collect()) == want, "{lens:?}");
        }
    }

    #[test]
    fn parts_that_lie_side_by_side_are_joined_where_they_are() {
        let mut parts = Values::side_by_side(&[32, 16, 5]).unwrap();
        parts.iter_mut().zip([1.0, 2.0, 3.0]).for_each(|(part, v)| part.make_mut().fill(v));
        let (at, kept) = (parts[0].as_ptr(), parts.clone());
        let copied = Values::join(parts);
        assert_ne!(copied.as_ptr(), at, "they are shared");
        let joined = Values::join(kept);
        assert_eq!(joined.as_ptr(), at);
        assert_eq!(joined, copied);
        assert_eq!((joined[31], joined[32], joined[48], joined.len()), (1.0, 2.0, 3.0, 53));
    }

    #[test]
    fn what_a_tensor_shares_does_not_change_under_it() {
        let mut values = Values::from(vec![1.0, 2.0]);
        let tensor = values.to_tensor([2]);
        assert!(values.get_mut().is_none());
        values.make_mut()[0] = 5.0;
        assert_eq!((tensor.to_vec::<f32>(), values.to_vec()), (vec![1.0, 2.0], vec![5.0, 2.0]));
        assert_eq!(Values::of(&tensor.reshape([2, 1]).t()).to_vec(), [1.0, 2.0]);
    }
}
