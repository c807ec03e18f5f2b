//! How a shape is laid over a buffer: strides and an offset, counted in elements.
//!
//! Every method that makes a new layout keeps one promise: a layout that stays inside a buffer of
//! `n` elements is turned into one that stays inside it too. Strides may be zero (broadcast) or
//! negative (reversed).

use smallvec::SmallVec;

use crate::shape::{Shape, ShapeError};

/// Strides, one per axis.
pub type Strides = SmallVec<[isize; 4]>;

/// Where each element of a shape lives in a buffer.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Layout {
    shape: Shape,
    strides: Strides,
    offset: usize,
}

impl Layout {
    /// Row-major over the start of a buffer.
    pub fn contiguous(shape: Shape) -> Self {
        let strides = row_major(&shape);
        Self { shape, strides, offset: 0 }
    }

    /// The sizes.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The distance between neighbours along each axis, in elements.
    pub fn strides(&self) -> &[isize] {
        &self.strides
    }

    /// The position of the first element.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.numel()
    }

    /// Whether the elements follow each other in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        let mut expected = 1isize;
        for (&d, &s) in self.shape.iter().zip(&self.strides).rev() {
            if d == 0 {
                return true;
            }
            if d != 1 {
                if s != expected {
                    return false;
                }
                expected *= d as isize;
            }
        }
        true
    }

    /// One past the largest position that any element has; 0 when there are no elements.
    pub fn end(&self) -> usize {
        if self.numel() == 0 {
            return 0;
        }
        let reach = |(&d, &s): (&usize, &isize)| if s > 0 { (d - 1) * s as usize } else { 0 };
        self.offset + self.shape.iter().zip(&self.strides).map(reach).sum::<usize>() + 1
    }

    /// The axes in another order. `axes` is a permutation of `0..rank`.
    pub fn permute(&self, axes: &[usize]) -> Layout {
        debug_assert_eq!(axes.len(), self.shape.rank());
        Layout {
            shape: axes.iter().map(|&a| self.shape[a]).collect(),
            strides: axes.iter().map(|&a| self.strides[a]).collect(),
            offset: self.offset,
        }
    }

    /// Axes of size 1, and new leading ones, repeated without copying.
    pub fn broadcast_to(&self, shape: &Shape) -> Result<Layout, ShapeError> {
        let error = || ShapeError::Broadcast { left: self.shape.clone(), right: shape.clone() };
        let lead = shape.rank().checked_sub(self.shape.rank()).ok_or_else(error)?;
        let mut strides: Strides = SmallVec::from_elem(0, shape.rank());
        for (i, (&d, &s)) in self.shape.iter().zip(&self.strides).enumerate() {
            let want = shape[lead + i];
            strides[lead + i] = match d {
                _ if d == want => s,
                1 => 0,
                _ => return Err(error()),
            };
        }
        Ok(Layout { shape: shape.clone(), strides, offset: self.offset })
    }

    /// Every `step`-th element of an axis from `start`, `len` of them. A negative step walks back.
    /// All positions `start + i·step` for `i < len` must lie inside the axis.
    pub fn slice(&self, axis: usize, start: usize, len: usize, step: isize) -> Layout {
        let mut out = self.clone();
        if len > 0 {
            let last = start as isize + (len as isize - 1) * step;
            assert!(
                start < self.shape[axis] && (0..self.shape[axis] as isize).contains(&last),
                "slice leaves the axis"
            );
            out.offset = (self.offset as isize + start as isize * self.strides[axis]) as usize;
        }
        out.shape.dims_mut()[axis] = len;
        out.strides[axis] *= step;
        out
    }

    /// One position of an axis, which disappears.
    pub fn select(&self, axis: usize, index: usize) -> Layout {
        let mut out = self.slice(axis, index, 1, 1);
        out.shape = out.shape.without(axis);
        out.strides.remove(axis);
        out
    }

    /// The same elements in the same row-major order under another shape, if strides can say it.
    pub fn reshape(&self, shape: &Shape) -> Option<Layout> {
        debug_assert_eq!(self.numel(), shape.numel());
        if self.is_contiguous() {
            return Some(Layout { shape: shape.clone(), strides: row_major(shape), offset: self.offset });
        }
        // Each maximal run of old axes that are contiguous among themselves can be cut anew; new
        // axes are matched against these runs from the back.
        let mut strides: Strides = SmallVec::from_elem(0, shape.rank());
        let mut new_axis = shape.rank();
        let mut axis = self.shape.rank();
        while axis > 0 {
            axis -= 1;
            let base = self.strides[axis];
            let mut run = self.shape[axis];
            while axis > 0 && (self.shape[axis - 1] == 1 || self.strides[axis - 1] == run as isize * base) {
                axis -= 1;
                run *= self.shape[axis];
            }
            if run == 1 && axis == 0 && self.shape.rank() > 1 && new_axis == 0 {
                break;
            }
            let mut filled = 1;
            while new_axis > 0 && (filled < run || shape[new_axis - 1] == 1) {
                new_axis -= 1;
                strides[new_axis] = base * filled as isize;
                filled *= shape[new_axis];
            }
            if filled != run {
                return None;
            }
        }
        if shape[..new_axis].iter().any(|&d| d != 1) {
            return None;
        }
        Some(Layout { shape: shape.clone(), strides, offset: self.offset })
    }

    /// Sliding windows of `size` along an axis, `step` apart; the window becomes the last axis.
    pub fn windows(&self, axis: usize, size: usize, step: usize) -> Layout {
        assert!(size <= self.shape[axis] && step > 0, "window larger than the axis");
        let mut out = self.clone();
        out.shape.dims_mut()[axis] = (self.shape[axis] - size) / step + 1;
        out.strides[axis] *= step as isize;
        out.shape.push(size);
        out.strides.push(self.strides[axis]);
        out
    }

    /// The elements where two axes have equal index (shifted by `shift`), as a new last axis.
    pub fn diagonal(&self, shift: isize, axis1: usize, axis2: usize) -> Layout {
        let (n1, n2) = (self.shape[axis1] as isize, self.shape[axis2] as isize);
        let (start1, start2) = (shift.saturating_neg().max(0), shift.max(0));
        let len = (n1 - start1).min(n2 - start2).max(0);
        let mut out = self.clone();
        if len > 0 {
            let move_by = start1 * self.strides[axis1] + start2 * self.strides[axis2];
            out.offset = (self.offset as isize + move_by) as usize;
        }
        let (first, second) = (axis1.min(axis2), axis1.max(axis2));
        out.shape = out.shape.without(second).without(first);
        out.strides.remove(second);
        out.strides.remove(first);
        out.shape.push(len as usize);
        out.strides.push(self.strides[axis1] + self.strides[axis2]);
        out
    }

    /// The positions of all elements in row-major order.
    pub fn positions(&self) -> Positions<'_> {
        Positions {
            layout: self,
            index: SmallVec::from_elem(0, self.shape.rank()),
            position: self.offset as isize,
            left: self.numel(),
        }
    }
}

/// The strides of a dense row-major tensor.
pub fn row_major(shape: &[usize]) -> Strides {
    let step = |d: usize| d.max(1) as isize;
    match *shape {
        [] => return SmallVec::new(),
        [_] => return SmallVec::from_buf_and_len([1, 0, 0, 0], 1),
        [_, b] => return SmallVec::from_buf_and_len([step(b), 1, 0, 0], 2),
        [_, b, c] => return SmallVec::from_buf_and_len([step(b) * step(c), step(c), 1, 0], 3),
        _ => {}
    }
    let mut strides: Strides = SmallVec::from_elem(1, shape.len());
    for i in (1..shape.len()).rev() {
        strides[i - 1] = strides[i] * shape[i].max(1) as isize;
    }
    strides
}

/// Iterator over the positions of a layout's elements: an odometer.
pub struct Positions<'a> {
    layout: &'a Layout,
    index: SmallVec<[usize; 4]>,
    position: isize,
    left: usize,
}

impl Iterator for Positions<'_> {
    type Item = usize;

    #[inline]
    fn next(&mut self) -> Option<usize> {
        if self.left == 0 {
            return None;
        }
        self.left -= 1;
        let here = self.position as usize;
        for axis in (0..self.index.len()).rev() {
            self.index[axis] += 1;
            self.position += self.layout.strides[axis];
            if self.index[axis] < self.layout.shape[axis] {
                break;
            }
            self.position -= self.layout.strides[axis] * self.index[axis] as isize;
            self.index[axis] = 0;
        }
        Some(here)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for Positions<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    fn positions(l: &Layout) -> Vec<usize> {
        l.positions().collect()
    }

    fn dense(d: &[usize]) -> Layout {
        Layout::contiguous(Shape::from(d))
    }

    #[test]
    fn views_visit_the_elements_that_numpy_would() {
        let l = dense(&[2, 3]);
        assert_eq!(positions(&l.permute(&[1, 0])), [0, 3, 1, 4, 2, 5]);
        assert_eq!(positions(&l.slice(1, 2, 2, -2)), [2, 0, 5, 3]);
        assert_eq!(positions(&l.select(0, 1)), [3, 4, 5]);
        assert_eq!(positions(&l.windows(1, 2, 1)), [0, 1, 1, 2, 3, 4, 4, 5]);
        assert_eq!(positions(&dense(&[3, 4]).diagonal(1, 0, 1)), [1, 6, 11]);
        assert_eq!(positions(&dense(&[3, 4]).diagonal(-1, 0, 1)), [4, 9]);
        assert_eq!(positions(&dense(&[1, 3]).broadcast_to(&[2, 3].into()).unwrap()), [0, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn reshape_keeps_row_major_order_or_says_no() {
        // Every reshape of every permutation and slice either agrees with the order or needs a copy.
        let bases = [dense(&[2, 3, 4]), dense(&[4, 1, 6]), dense(&[2, 2, 2, 3])];
        let shapes: [&[usize]; 8] =
            [&[24], &[6, 4], &[4, 6], &[2, 12], &[2, 3, 4], &[1, 24, 1], &[2, 2, 6], &[8, 3]];
        let mut as_view = 0;
        for base in &bases {
            let r = base.shape().rank();
            let perms: Vec<Vec<usize>> = if r == 3 {
                vec![vec![0, 1, 2], vec![1, 0, 2], vec![2, 1, 0], vec![0, 2, 1]]
            } else {
                vec![vec![0, 1, 2, 3], vec![1, 0, 2, 3], vec![2, 3, 0, 1]]
            };
            for p in perms {
                let l = base.permute(&p);
                for s in shapes {
                    if let Some(v) = l.reshape(&Shape::from(s)) {
                        as_view += 1;
                        assert_eq!(positions(&v), positions(&l), "{l:?} as {s:?}");
                    }
                }
            }
        }
        assert!(as_view > 30);
        assert!(dense(&[2, 3]).permute(&[1, 0]).reshape(&[6].into()).is_none());
    }

    #[test]
    fn end_bounds_every_position() {
        let l = dense(&[3, 4]).slice(0, 2, 2, -1).slice(1, 1, 2, 2);
        assert_eq!(positions(&l), [9, 11, 5, 7]);
        assert_eq!(l.end(), 12);
        assert_eq!(dense(&[0, 4]).end(), 0);
    }
}
