//! A tensor as files know it: dense, row-major, on its own.

use std::io::{self, Write};

use thalweg_core::{Buffer, DType, Shape};

use crate::error::Problem;

/// More axes than any array NumPy can make; a file that claims more is refused.
pub(crate) const MAX_RANK: usize = 64;

/// A tensor read from a file: row-major and dense, its dtype that of the buffer.
///
/// ```
/// use thalweg_core::{Buffer, Shape};
/// use thalweg_formats::Stored;
///
/// let t = Stored { buffer: Buffer::from_slice(&[1f32, 2.0, 3.0]), shape: Shape::from([3]) };
/// assert_eq!(t.buffer.as_slice::<f32>(), [1.0, 2.0, 3.0]);
/// ```
#[derive(Debug, Clone)]
pub struct Stored {
    /// The elements, last axis fastest.
    pub buffer: Buffer,
    /// The sizes of the axes; their product is the length of the buffer.
    pub shape: Shape,
}

/// A tensor to be written: borrowed, row-major and dense.
///
/// ```
/// use thalweg_core::DType;
/// use thalweg_formats::{Dense, npy};
///
/// let file = npy::encode(Dense { dtype: DType::U8, shape: &[2, 2], bytes: &[1, 2, 3, 4] })?;
/// assert_eq!(npy::parse(&file)?.buffer.as_slice::<u8>(), [1, 2, 3, 4]);
/// # Ok::<(), thalweg_formats::FormatError>(())
/// ```
#[derive(Debug, Clone, Copy)]
pub struct Dense<'a> {
    /// The element type.
    pub dtype: DType,
    /// The sizes of the axes, outermost first.
    pub shape: &'a [usize],
    /// The elements as they lie in memory, in this machine's byte order.
    pub bytes: &'a [u8],
}

impl<'a> From<&'a Stored> for Dense<'a> {
    fn from(t: &'a Stored) -> Self {
        Dense { dtype: t.buffer.dtype(), shape: &t.shape, bytes: t.buffer.bytes() }
    }
}

impl Dense<'_> {
    /// Everything that would make a file of this tensor unreadable.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.shape.len() > MAX_RANK {
            problems.push(Problem::Rank { rank: self.shape.len(), limit: MAX_RANK });
        }
        match Shape::from(self.shape).checked_numel() {
            Err(_) => {
                problems.push(Problem::Overflow { shape: self.shape.iter().map(|&d| d as u64).collect() })
            }
            Ok(n) => {
                let (need, have) = ((n * self.dtype.size()) as u64, self.bytes.len() as u64);
                if need != have {
                    let shape = Shape::from(self.shape);
                    problems.push(Problem::Size { dtype: self.dtype, shape, need, have });
                }
            }
        }
        problems.extend(bad_bool(self.dtype, self.bytes));
        problems
    }

    /// Writes the elements in little-endian order.
    pub(crate) fn write_le(&self, w: &mut dyn Write) -> io::Result<()> {
        if cfg!(target_endian = "little") || self.dtype.size() == 1 {
            return w.write_all(self.bytes);
        }
        for chunk in self.bytes.chunks(1 << 16) {
            w.write_all(&swapped(chunk, self.dtype.size()))?;
        }
        Ok(())
    }
}

/// The first byte that is no `bool`, when the dtype is `bool`.
pub(crate) fn bad_bool(dtype: DType, bytes: &[u8]) -> Option<Problem> {
    if dtype != DType::Bool {
        return None;
    }
    let index = bytes.iter().position(|&b| b > 1)?;
    Some(Problem::BadBool { index, value: bytes[index] })
}

/// The bytes with each element's order reversed.
pub(crate) fn swapped(bytes: &[u8], size: usize) -> Vec<u8> {
    let mut out = bytes.to_vec();
    out.chunks_exact_mut(size).for_each(<[u8]>::reverse);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_that_contradicts_itself_is_refused_with_every_reason() {
        let t = Dense { dtype: DType::Bool, shape: &[3], bytes: &[1, 7] };
        assert_eq!(
            t.problems(),
            [
                Problem::Size { dtype: DType::Bool, shape: Shape::from([3]), need: 3, have: 2 },
                Problem::BadBool { index: 1, value: 7 }
            ]
        );
        let t = Dense { dtype: DType::U8, shape: &[usize::MAX; 65], bytes: &[] };
        assert!(matches!(t.problems()[..], [Problem::Rank { rank: 65, .. }, Problem::Overflow { .. }]));
    }
}
