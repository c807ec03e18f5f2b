//! Shapes and the arithmetic on them: axes, broadcasting, inferred sizes.

use std::fmt;
use std::ops::Deref;

use smallvec::SmallVec;
use thiserror::Error;

/// The sizes of a tensor's axes, outermost first. Up to four axes need no heap memory.
#[derive(PartialEq, Eq, Hash, Default, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Shape(SmallVec<[usize; 4]>);

impl Clone for Shape {
    /// Every op clones shapes: four words are copied faster than a list is collected.
    #[inline]
    fn clone(&self) -> Self {
        match *self.0 {
            [] => Self::scalar(),
            [a] => Self(SmallVec::from_buf_and_len([a, 0, 0, 0], 1)),
            [a, b] => Self(SmallVec::from_buf_and_len([a, b, 0, 0], 2)),
            [a, b, c] => Self(SmallVec::from_buf_and_len([a, b, c, 0], 3)),
            [a, b, c, d] => Self(SmallVec::from_buf([a, b, c, d])),
            ref more => Self(SmallVec::from_slice(more)),
        }
    }
}

/// A shape or axis that does not fit.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// Two shapes that NumPy's rules cannot bring together.
    #[error(
        "shapes {left} and {right} do not broadcast (sizes must be equal or 1, counted from the last axis)"
    )]
    Broadcast {
        /// The shape of the first operand.
        left: Shape,
        /// The shape of the second operand.
        right: Shape,
    },
    /// An axis outside `-rank..rank`.
    #[error("axis {axis} is out of range for shape {shape} (use {}..={})", -(shape.rank().max(1) as isize), shape.rank().max(1) - 1)]
    Axis {
        /// The axis as given.
        axis: isize,
        /// The shape it was meant for.
        shape: Shape,
    },
    /// An axis named twice.
    #[error("axis {axis} is named twice for shape {shape}")]
    RepeatedAxis {
        /// The axis, counted from the front.
        axis: usize,
        /// The shape it was meant for.
        shape: Shape,
    },
    /// More elements than an address can reach.
    #[error("shape {shape} has more elements than memory can hold")]
    TooLarge {
        /// The shape as asked for.
        shape: Shape,
    },
}

impl Shape {
    /// The shape of a scalar: no axes, one element.
    pub fn scalar() -> Self {
        Self(SmallVec::new())
    }

    /// Number of axes.
    pub fn rank(&self) -> usize {
        self.0.len()
    }

    /// Number of elements; saturates instead of wrapping, see [`Shape::checked_numel`].
    pub fn numel(&self) -> usize {
        self.0.iter().fold(1usize, |n, &d| n.saturating_mul(d))
    }

    /// Number of elements, refused when their bytes could not be addressed even at 8 bytes each.
    /// An axis of size 0 makes the product 0 whatever the other axes say, but they too must be
    /// representable, or strides would overflow.
    pub fn checked_numel(&self) -> Result<usize, ShapeError> {
        let too_large = || ShapeError::TooLarge { shape: self.clone() };
        let bound = self.0.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1))).ok_or_else(too_large)?;
        if bound > isize::MAX as usize / 16 {
            return Err(too_large());
        }
        Ok(self.numel())
    }

    /// Refuses a shape whose positions cannot be counted. A view may be larger than any memory, since it may
    /// repeat its elements; not even a view may be larger than this.
    pub fn check_countable(&self) -> Result<(), ShapeError> {
        let count = self.0.iter().try_fold(1isize, |n, &d| n.checked_mul(isize::try_from(d.max(1)).ok()?));
        count.map(|_| ()).ok_or_else(|| ShapeError::TooLarge { shape: self.clone() })
    }

    /// The axis counted from the front, for one that may count from the back.
    pub fn axis(&self, axis: isize) -> Result<usize, ShapeError> {
        // A scalar accepts axes 0 and -1, as in PyTorch.
        let rank = self.rank().max(1) as isize;
        if (-rank..rank).contains(&axis) {
            Ok(axis.rem_euclid(rank) as usize)
        } else {
            Err(ShapeError::Axis { axis, shape: self.clone() })
        }
    }

    /// Several axes, each counted from the front; none may be named twice.
    pub fn axes(&self, axes: &[isize]) -> Result<SmallVec<[usize; 4]>, ShapeError> {
        let mut out = SmallVec::new();
        for &a in axes {
            let axis = self.axis(a)?;
            if out.contains(&axis) {
                return Err(ShapeError::RepeatedAxis { axis, shape: self.clone() });
            }
            out.push(axis);
        }
        Ok(out)
    }

    /// The common shape of two operands by NumPy's rules.
    pub fn broadcast(&self, other: &Shape) -> Result<Shape, ShapeError> {
        if self == other {
            return Ok(self.clone());
        }
        let rank = self.rank().max(other.rank());
        let mut out: SmallVec<[usize; 4]> = SmallVec::from_elem(1, rank);
        for i in 0..rank {
            let a = if i < self.rank() { self.0[self.rank() - 1 - i] } else { 1 };
            let b = if i < other.rank() { other.0[other.rank() - 1 - i] } else { 1 };
            out[rank - 1 - i] = match (a, b) {
                (a, b) if a == b => a,
                (1, b) => b,
                (a, 1) => a,
                _ => return Err(ShapeError::Broadcast { left: self.clone(), right: other.clone() }),
            };
        }
        Ok(Shape(out))
    }

    /// This shape with one axis changed.
    pub fn with(&self, axis: usize, size: usize) -> Shape {
        let mut out = self.clone();
        out.0[axis] = size;
        out
    }

    /// This shape without one axis.
    pub fn without(&self, axis: usize) -> Shape {
        let mut out = self.clone();
        if axis < out.rank() {
            out.0.remove(axis);
        }
        out
    }

    /// This shape with an axis of `size` inserted before `axis`.
    pub fn inserted(&self, axis: usize, size: usize) -> Shape {
        let mut out = self.clone();
        out.0.insert(axis, size);
        out
    }

    /// The sizes, to be changed in place.
    pub fn dims_mut(&mut self) -> &mut [usize] {
        &mut self.0
    }

    /// Appends an axis.
    pub fn push(&mut self, size: usize) {
        self.0.push(size);
    }

    /// The product of the sizes before, at and after an axis: any reduction along one axis is a
    /// walk over `(outer, axis, inner)`.
    pub fn around(&self, axis: usize) -> (usize, usize, usize) {
        if self.rank() == 0 {
            return (1, 1, 1);
        }
        (self.0[..axis].iter().product(), self.0[axis], self.0[axis + 1..].iter().product())
    }
}

impl Deref for Shape {
    type Target = [usize];
    fn deref(&self) -> &[usize] {
        &self.0
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[")?;
        for (i, d) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            write!(f, "{d}")?;
        }
        f.write_str("]")
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromIterator<usize> for Shape {
    fn from_iter<I: IntoIterator<Item = usize>>(iter: I) -> Self {
        Self(iter.into_iter().collect())
    }
}

impl From<()> for Shape {
    fn from((): ()) -> Self {
        Self::scalar()
    }
}

impl From<&Shape> for Shape {
    fn from(s: &Shape) -> Self {
        s.clone()
    }
}

impl From<&[usize]> for Shape {
    fn from(d: &[usize]) -> Self {
        Self(d.into())
    }
}

impl From<Vec<usize>> for Shape {
    fn from(d: Vec<usize>) -> Self {
        Self(d.into())
    }
}

impl From<&Vec<usize>> for Shape {
    fn from(d: &Vec<usize>) -> Self {
        Self(d.as_slice().into())
    }
}

impl<const N: usize> From<[usize; N]> for Shape {
    fn from(d: [usize; N]) -> Self {
        Self(d.as_slice().into())
    }
}

impl<const N: usize> From<&[usize; N]> for Shape {
    fn from(d: &[usize; N]) -> Self {
        Self(d.as_slice().into())
    }
}

impl From<usize> for Shape {
    fn from(d: usize) -> Self {
        Self::from([d])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broadcasting_follows_numpy() {
        let s = |d: &[usize]| Shape::from(d);
        assert_eq!(s(&[2, 1, 4]).broadcast(&s(&[3, 1])).unwrap(), s(&[2, 3, 4]));
        assert_eq!(s(&[0, 3]).broadcast(&s(&[1, 3])).unwrap(), s(&[0, 3]));
        assert_eq!(s(&[]).broadcast(&s(&[2])).unwrap(), s(&[2]));
        let err = s(&[2, 3]).broadcast(&s(&[2, 4])).unwrap_err();
        assert!(err.to_string().contains("[2, 3] and [2, 4]"), "{err}");
    }

    #[test]
    fn axes_count_from_both_ends_and_only_once() {
        let s = Shape::from([2, 3]);
        assert_eq!(s.axis(-1), Ok(1));
        assert!(matches!(s.axis(2), Err(ShapeError::Axis { axis: 2, .. })));
        assert!(matches!(s.axes(&[0, -2]), Err(ShapeError::RepeatedAxis { axis: 0, .. })));
        assert_eq!(Shape::scalar().axis(-1), Ok(0));
    }

    #[test]
    fn a_shape_that_overflows_is_refused_even_when_it_is_empty() {
        assert!(Shape::from([usize::MAX, 2]).checked_numel().is_err());
        assert!(Shape::from([0, usize::MAX, 4]).checked_numel().is_err());
        assert_eq!(Shape::from([0, 7]).checked_numel(), Ok(0));
    }
}
