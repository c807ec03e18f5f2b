//! `pad`: longer or shorter axes.

use smallvec::SmallVec;
use thalweg_core::Shape;

use crate::apply::run;
use crate::error::{OpError, fail};
use crate::ops::{Embed, Number, Stride};
use crate::tensor::Tensor;

/// What stands beyond the edges.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PadMode {
    /// A number.
    Constant(f64),
    /// The elements mirrored at the edge, which is not repeated.
    Reflect,
    /// The edge, again and again.
    Replicate,
    /// The elements from the other end.
    Circular,
}

impl Tensor {
    /// Longer axes. `pads` holds how much goes before and after each axis, in pairs, beginning with
    /// the last axis as in PyTorch; negative amounts cut.
    ///
    /// ```
    /// use thalweg_tensor::{PadMode, Tensor};
    /// let x = Tensor::from([1.0f32, 2.0, 3.0]);
    /// assert_eq!(x.pad(&[1, -1], PadMode::Constant(9.0)).to_vec::<f32>(), [9.0, 1.0, 2.0]);
    /// assert_eq!(x.pad(&[2, 1], PadMode::Reflect).to_vec::<f32>(), [3.0, 2.0, 1.0, 2.0, 3.0, 2.0]);
    /// ```
    #[track_caller]
    pub fn pad(&self, pads: &[isize], padding: PadMode) -> Tensor {
        let bad = |need| -> ! {
            let (value, shape) = (format!("{pads:?}"), self.shape().clone());
            fail(OpError::Argument { op: "pad", name: "pads", value, shape, need })
        };
        if !pads.len().is_multiple_of(2) || pads.len() / 2 > self.rank() {
            bad("a pair for each of the last axes, at most as many as there are");
        }
        let ends = |axis: usize| match self.rank() - 1 - axis {
            k if 2 * k < pads.len() => (pads[2 * k], pads[2 * k + 1]),
            _ => (0, 0),
        };
        for (axis, &d) in self.shape().iter().enumerate() {
            let (before, after) = ends(axis);
            if (d as isize).checked_add(before).and_then(|n| n.checked_add(after)).is_none_or(|n| n < 0) {
                bad("an axis cannot be cut by more than its size");
            }
            match padding {
                PadMode::Reflect if before.max(after) >= d.max(1) as isize => {
                    bad("a mirror shows less than the axis: reflect by at most its size less one");
                }
                PadMode::Circular if before.max(after) > d as isize => {
                    bad("one turn at most: wrap by at most the size of the axis");
                }
                PadMode::Replicate if d == 0 && before.max(after) > 0 => {
                    bad("an axis without elements has no edge to repeat");
                }
                _ => {}
            }
        }
        if let PadMode::Constant(value) = padding {
            return self.pad_constant(ends, value);
        }
        (0..self.rank()).fold(self.clone(), |x, axis| {
            let (n, (before, after)) = (x.shape()[axis] as isize, ends(axis));
            if (before, after) == (0, 0) {
                return x;
            }
            let source = |i: isize| match padding {
                PadMode::Reflect if i < 0 => -i,
                PadMode::Reflect if i >= n => 2 * (n - 1) - i,
                PadMode::Circular => i.rem_euclid(n.max(1)),
                _ => i.clamp(0, (n - 1).max(0)),
            };
            let index: Vec<i64> = (-before..n + after).map(|i| source(i) as i64).collect();
            x.index_select(axis as isize, &Tensor::from(index))
        })
    }

    /// Cuts first, then places what is left into the constant.
    #[track_caller]
    fn pad_constant(&self, ends: impl Fn(usize) -> (isize, isize), value: f64) -> Tensor {
        let cut = (0..self.rank()).fold(self.clone(), |x, axis| {
            let ((before, after), n) = (ends(axis), x.shape()[axis] as isize);
            if before >= 0 && after >= 0 {
                return x;
            }
            // When one end cuts deeper than the axis, the other end's padding is cut too.
            let (start, stop) = ((-before).clamp(0, n), (n + after.min(0)).clamp(0, n));
            x.slice(axis as isize, Some(start), Some(stop.max(start)), 1)
        });
        let size = |axis: usize| (self.shape()[axis] as isize + ends(axis).0 + ends(axis).1) as usize;
        let shape: Shape = (0..self.rank()).map(size).collect();
        if shape == *cut.shape() {
            return cut;
        }
        let place =
            |(axis, &len): (usize, &usize)| Stride { start: ends(axis).0.max(0) as usize, len, step: 1 };
        let strides: SmallVec<[Stride; 4]> = cut.shape().iter().enumerate().map(place).collect();
        run(Embed { shape, strides, fill: Number(value) }, &[&cut])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_of_both_signs_meet() {
        let x = Tensor::arange(4);
        let pad = |a, b, p| x.pad(&[a, b], p).to_vec::<i64>();
        assert_eq!(pad(-1, -1, PadMode::Constant(9.0)), [1, 2]);
        assert_eq!(pad(-6, 3, PadMode::Constant(9.0)), [9]);
        assert_eq!(pad(-1, 2, PadMode::Replicate), [1, 2, 3, 3, 3]);
        assert_eq!(pad(4, -4, PadMode::Circular), [0, 1, 2, 3]);
        assert_eq!(pad(3, 3, PadMode::Reflect), [3, 2, 1, 0, 1, 2, 3, 2, 1, 0]);
        assert_eq!(**Tensor::arange(0).pad(&[1, 1], PadMode::Constant(0.0)).shape(), [2]);
    }
}
