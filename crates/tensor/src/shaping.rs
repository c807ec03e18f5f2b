//! Shape functions that are one reshape or one copy.

use thalweg_core::{Buffer, Shape};

use crate::apply::run;
use crate::error::{InOp, or_fail};
use crate::ops::Broadcast;
use crate::tensor::Tensor;

impl Tensor {
    /// A new axis of size 1 before `axis`; `-1` is after the last.
    #[track_caller]
    pub fn unsqueeze(&self, axis: isize) -> Tensor {
        let raised = self.shape().inserted(self.rank(), 1);
        let axis = or_fail(raised.axis(axis).in_op("unsqueeze"));
        self.reshape(self.shape().inserted(axis, 1))
    }

    /// Without some axes that have size 1, `()` for all of those; an axis of another size stays.
    #[track_caller]
    pub fn squeeze(&self, axes: impl Into<crate::args::Axes>) -> Tensor {
        let axes = or_fail(axes.into().resolve("squeeze", self.shape()));
        let stays = |&(i, &d): &(usize, &usize)| d != 1 || !axes.contains(&i);
        self.reshape(self.shape().iter().enumerate().filter(stays).map(|(_, &d)| d).collect::<Shape>())
    }

    /// The axes from `start` to `end`, both included, as one.
    #[track_caller]
    pub fn flatten(&self, start: isize, end: isize) -> Tensor {
        let start = or_fail(self.shape().axis(start).in_op("flatten"));
        let end = or_fail(self.shape().axis(end).in_op("flatten"));
        if self.rank() == 0 {
            return self.reshape(1);
        }
        let middle = self.shape()[start..=end.max(start)].iter().product::<usize>();
        let (before, after) = (&self.shape()[..start], &self.shape()[end.max(start) + 1..]);
        self.reshape(before.iter().copied().chain([middle]).chain(after.iter().copied()).collect::<Shape>())
    }

    /// A dense copy, differentiable.
    #[track_caller]
    pub(crate) fn broadcast_dense(&self) -> Tensor {
        // A reshape of a strided tensor to one axis copies it when it must.
        let flat = self.reshape(self.numel()).reshape(self.shape());
        if flat.is_contiguous() { flat } else { run(Broadcast { shape: self.shape().clone() }, &[self]) }
    }

    /// A tensor like `y` that is 1 at one flat position and 0 elsewhere.
    pub(crate) fn one_hot_flat(position: usize, y: &Tensor) -> Tensor {
        let mut buffer = Buffer::zeros(y.dtype(), y.numel());
        thalweg_core::with_dtype!(y.dtype(), T => {
            buffer.as_mut_slice::<T>()[position] = thalweg_core::Element::from_i64(1);
        });
        Tensor::from_buffer(buffer, y.shape())
    }
}
