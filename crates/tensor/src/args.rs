//! Arguments that read as in NumPy: axes and sizes, from the front or the back, one or many.

use smallvec::SmallVec;
use thalweg_core::Shape;

use crate::error::{InOp, OpError};

/// Which axes: `()` for all, one number, or several; negative ones count from the back.
#[derive(Debug, Clone)]
pub enum Axes {
    /// Every axis.
    All,
    /// These axes.
    Some(SmallVec<[isize; 4]>),
}

impl Axes {
    /// As a list, for a tensor of this rank.
    pub(crate) fn list(&self, rank: usize) -> SmallVec<[isize; 4]> {
        match self {
            Axes::All => (0..rank as isize).collect(),
            Axes::Some(axes) => axes.clone(),
        }
    }

    /// As ascending axes counted from the front.
    pub(crate) fn resolve(&self, op: &'static str, shape: &Shape) -> Result<SmallVec<[usize; 4]>, OpError> {
        let mut axes = shape.axes(&self.list(shape.rank())).in_op(op)?;
        // A scalar accepts axis 0 and has none to drop.
        axes.retain(|&mut a| a < shape.rank());
        axes.sort_unstable();
        Ok(axes)
    }
}

/// Sizes, where `-1` stands for one that is inferred or kept.
#[derive(Debug, Clone)]
pub struct Dims(SmallVec<[isize; 4]>);

impl Dims {
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = isize> + '_ {
        self.0.iter().copied()
    }

    /// The shape for as many elements as `from` has.
    pub(crate) fn resolve(&self, op: &'static str, from: &Shape) -> Result<Shape, OpError> {
        let error = |need| OpError::Argument {
            op,
            name: "shape",
            value: format!("{:?}", &self.0[..]),
            shape: from.clone(),
            need,
        };
        if self.0.iter().any(|&d| d < -1) {
            return Err(error("sizes are at least 0, or -1 for one that is inferred"));
        }
        let known = self.0.iter().filter(|&&d| d >= 0).fold(1usize, |n, &d| n.saturating_mul(d as usize));
        let inferred = match self.0.iter().filter(|&&d| d == -1).count() {
            0 => 0,
            1 if known == 0 => return Err(error("the inferred size is ambiguous beside a size of 0")),
            1 if !from.numel().is_multiple_of(known) => {
                return Err(error("the number of elements must stay the same"));
            }
            1 => from.numel() / known,
            _ => return Err(error("only one size can be inferred")),
        };
        Ok(self.0.iter().map(|&d| if d == -1 { inferred } else { d as usize }).collect())
    }
}

macro_rules! integers {
    ($($t:ty),*) => {$(
        impl From<$t> for Axes {
            fn from(axis: $t) -> Self { Axes::Some(smallvec::smallvec![axis as isize]) }
        }
        impl<const N: usize> From<[$t; N]> for Axes {
            fn from(axes: [$t; N]) -> Self { Axes::Some(axes.iter().map(|&a| a as isize).collect()) }
        }
        impl From<&[$t]> for Axes {
            fn from(axes: &[$t]) -> Self { Axes::Some(axes.iter().map(|&a| a as isize).collect()) }
        }
        impl From<Vec<$t>> for Axes {
            fn from(axes: Vec<$t>) -> Self { axes.as_slice().into() }
        }
        impl From<&Vec<$t>> for Axes {
            fn from(axes: &Vec<$t>) -> Self { axes.as_slice().into() }
        }
        impl From<$t> for Dims {
            fn from(size: $t) -> Self { Dims(smallvec::smallvec![size as isize]) }
        }
        impl<const N: usize> From<[$t; N]> for Dims {
            fn from(sizes: [$t; N]) -> Self { Dims(sizes.iter().map(|&d| d as isize).collect()) }
        }
        impl From<&[$t]> for Dims {
            fn from(sizes: &[$t]) -> Self { Dims(sizes.iter().map(|&d| d as isize).collect()) }
        }
        impl From<Vec<$t>> for Dims {
            fn from(sizes: Vec<$t>) -> Self { sizes.as_slice().into() }
        }
        impl From<&Vec<$t>> for Dims {
            fn from(sizes: &Vec<$t>) -> Self { sizes.as_slice().into() }
        }
    )*};
}

integers!(i32, i64, isize, usize);

impl From<()> for Axes {
    fn from((): ()) -> Self {
        Axes::All
    }
}

impl From<()> for Dims {
    fn from((): ()) -> Self {
        Dims(SmallVec::new())
    }
}

impl From<Shape> for Dims {
    fn from(shape: Shape) -> Self {
        Self::from(&shape)
    }
}

impl From<&Shape> for Dims {
    fn from(shape: &Shape) -> Self {
        Dims(shape.iter().map(|&d| d as isize).collect())
    }
}

/// A size for each spatial axis: one number for all of them, or one for each.
///
/// ```
/// use thalweg_tensor::{ConvOptions, PerAxis};
/// let options = ConvOptions { stride: 2.into(), dilation: [1, 2].into(), ..Default::default() };
/// assert_eq!(options.stride, PerAxis::from(2));
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PerAxis(SmallVec<[usize; 3]>);

impl PerAxis {
    /// One size for each of `n` axes, or `None` when another number of sizes was given.
    pub fn sizes(&self, n: usize) -> Option<SmallVec<[usize; 3]>> {
        match self.0.len() {
            1 => Some(SmallVec::from_elem(self.0[0], n)),
            len => (len == n).then(|| self.0.clone()),
        }
    }

    /// One size for each of `n` axes.
    pub(crate) fn list(
        &self,
        op: &'static str,
        name: &'static str,
        n: usize,
        shape: &Shape,
    ) -> Result<SmallVec<[usize; 3]>, OpError> {
        self.sizes(n).ok_or_else(|| {
            let (value, shape) = (format!("{:?}", &self.0[..]), shape.clone());
            OpError::Argument { op, name, value, shape, need: "one number, or one per spatial axis" }
        })
    }
}

impl From<usize> for PerAxis {
    fn from(size: usize) -> Self {
        Self(smallvec::smallvec![size])
    }
}

impl<const N: usize> From<[usize; N]> for PerAxis {
    fn from(sizes: [usize; N]) -> Self {
        Self(SmallVec::from_slice(&sizes))
    }
}

impl From<&[usize]> for PerAxis {
    fn from(sizes: &[usize]) -> Self {
        Self(SmallVec::from_slice(sizes))
    }
}
