//! `slice`: along each axis, `len` elements from `start`, `step` apart. Always a view; a negative
//! step walks back, so reversing is slicing.

use smallvec::SmallVec;
use thalweg_core::{Layout, Shape, View, ViewMut};

use crate::apply::run;
use crate::error::{InOp, OpError, fail, or_fail};
use crate::meta::{Meta, arity};
use crate::ops::primitive::{Cost, Grad, Keep, Number, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{Embed, copy};
use crate::tensor::Tensor;

/// Positions along one axis: `start`, `start + step`, …, `len` of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Stride {
    /// The first position.
    pub start: usize,
    /// How many positions.
    pub len: usize,
    /// The distance from one to the next; may be negative, not zero.
    pub step: isize,
}

impl Stride {
    /// Every position of an axis.
    pub fn all(size: usize) -> Self {
        Self { start: 0, len: size, step: 1 }
    }

    /// Whether all positions lie inside an axis of this size.
    pub fn fits(&self, size: usize) -> bool {
        let last = self.start as isize + (self.len as isize - 1) * self.step;
        self.len == 0 || (self.start < size && (0..size as isize).contains(&last) && self.step != 0)
    }
}

/// Some positions of each axis.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Slice {
    /// One entry per axis.
    pub strides: SmallVec<[Stride; 4]>,
}

impl Slice {
    fn apply_to(&self, layout: &Layout) -> Layout {
        let keep = |l: Layout, (axis, s): (usize, &Stride)| l.slice(axis, s.start, s.len, s.step);
        self.strides.iter().enumerate().fold(layout.clone(), keep)
    }
}

impl Primitive for Slice {
    const NAME: &'static str = "slice";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        let fits = self.strides.len() == x.shape.rank()
            && self.strides.iter().zip(x.shape.iter()).all(|(s, &d)| s.fits(d));
        if !fits {
            return Err(OpError::Argument {
                op: Self::NAME,
                name: "strides",
                value: format!("{:?}", self.strides),
                shape: x.shape.clone(),
                need: "one entry per axis, every position inside it",
            });
        }
        Ok(x.with_shape(self.strides.iter().map(|s| s.len).collect::<Shape>()))
    }

    fn keep(&self) -> Keep {
        Keep::METAS
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let back = Embed { shape: g.meta(0).shape.clone(), strides: self.strides.clone(), fill: Number(0.0) };
        Grad::one(run(back, &[g.dy()]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        copy::through_layout(x[0], &self.apply_to(x[0].layout()), y);
        Ok(())
    }

    fn view(&self, x: &Layout, _result: &Shape) -> Option<Layout> {
        Some(self.apply_to(x))
    }

    fn cost(&self, _x: &[&Meta], _y: &Meta) -> Cost {
        Cost::default()
    }

    fn samples() -> Vec<Sample> {
        let call = |shape: &[usize], s: &[(usize, usize, isize)]| {
            let strides = s.iter().map(|&(start, len, step)| Stride { start, len, step }).collect();
            Sample::new(Slice { strides }, [Draw::any(shape)])
        };
        vec![
            call(&[5, 4], &[(0, 3, 2), (3, 2, -2)]),
            call(&[5], &[(4, 5, -1)]),
            call(&[3, 2], &[(0, 0, 1), (0, 2, 1)]),
            call(&[], &[]),
            call(&[1, 3], &[(0, 1, 7), (1, 1, 1)]),
        ]
    }
}

impl Tensor {
    /// Positions `start..stop` of one axis, every `step`-th, as Python slices them: negative ends
    /// count from the back, ends beyond the axis are cut, `None` is the natural end.
    #[track_caller]
    pub fn slice(&self, axis: isize, start: Option<isize>, stop: Option<isize>, step: isize) -> Tensor {
        let axis = or_fail(self.shape().axis(axis).in_op(Slice::NAME));
        if axis >= self.rank() {
            fail(OpError::Rank { op: Slice::NAME, want: "at least 1", shape: self.shape().clone() });
        }
        if step == 0 {
            let (shape, need) = (self.shape().clone(), "a step is at least 1, or negative to walk back");
            fail(OpError::Argument { op: Slice::NAME, name: "step", value: "0".into(), shape, need });
        }
        let mut strides: SmallVec<[Stride; 4]> = self.shape().iter().map(|&d| Stride::all(d)).collect();
        strides[axis] = python_slice(self.shape()[axis], start, stop, step);
        run(Slice { strides }, &[self])
    }

    /// `length` positions of one axis from `start`.
    #[track_caller]
    pub fn narrow(&self, axis: isize, start: usize, length: usize) -> Tensor {
        let size = self.size(axis);
        if start.checked_add(length).is_none_or(|end| end > size) {
            let (value, shape) = (format!("{start}..{}", start.saturating_add(length)), self.shape().clone());
            fail(OpError::Argument {
                op: "narrow",
                name: "range",
                value,
                shape,
                need: "the range must lie inside the axis",
            });
        }
        self.slice(axis, Some(start as isize), Some((start + length) as isize), 1)
    }

    /// One position of one axis, which disappears; negative positions count from the back.
    #[track_caller]
    pub fn select(&self, axis: isize, index: isize) -> Tensor {
        let axis = or_fail(self.shape().axis(axis).in_op("select"));
        let size = self.shape().get(axis).copied().unwrap_or(0);
        let at = if index < 0 { index + size as isize } else { index };
        if !(0..size as isize).contains(&at) {
            fail(OpError::Index { op: "select", index: index as i64, size });
        }
        self.slice(axis as isize, Some(at), Some(at + 1), 1).reshape(self.shape().without(axis))
    }

    /// Some axes reversed.
    #[track_caller]
    pub fn flip(&self, axes: impl Into<crate::args::Axes>) -> Tensor {
        let axes = or_fail(axes.into().resolve("flip", self.shape()));
        let flipped = |(i, &d): (usize, &usize)| match axes.contains(&i) && d > 0 {
            true => Stride { start: d - 1, len: d, step: -1 },
            false => Stride::all(d),
        };
        run(Slice { strides: self.shape().iter().enumerate().map(flipped).collect() }, &[self])
    }
}

/// `range(size)[start:stop:step]`.
pub(crate) fn python_slice(size: usize, start: Option<isize>, stop: Option<isize>, step: isize) -> Stride {
    let size = size as isize;
    let from_back = |i: isize| if i < 0 { i + size } else { i };
    let (start, len) = if step > 0 {
        let start = start.map_or(0, from_back).clamp(0, size);
        let stop = stop.map_or(size, from_back).clamp(0, size);
        (start, (stop - start + step - 1) / step)
    } else {
        let start = start.map_or(size - 1, from_back).clamp(-1, size - 1);
        let stop = stop.map_or(-1, from_back).clamp(-1, size - 1);
        (start, (start - stop - step - 1) / -step)
    };
    let len = len.max(0);
    Stride { start: if len == 0 { 0 } else { start as usize }, len: len as usize, step }
}
