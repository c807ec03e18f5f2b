//! NumPy's indexing: `x.i((0, 1..3, Ellipsis, -1))`.
//!
//! Numbers, ranges, [`Slice`], [`NewAxis`] and [`Ellipsis`] give a view. Tensors of whole numbers
//! pick elements (advanced indexing), tensors of `bool` pick where they are true.

use std::ops::{Range, RangeFrom, RangeFull, RangeInclusive, RangeTo, RangeToInclusive};

use smallvec::SmallVec;
use thalweg_core::{DType, Shape};

use crate::apply::run;
use crate::error::{InOp, OpError, fail, or_fail};
use crate::operand::Operand;
use crate::ops::{Combine, Stride, Update, python_slice};
use crate::tensor::Tensor;

/// An axis of size 1 that was not there before, in an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewAxis;

/// As many whole axes as are left, in an index: NumPy's `...`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ellipsis;

/// A range with a step, in an index: `Slice(.., -1)` walks back, `Slice(1.., 2)` takes every second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice<R>(pub R, pub isize);

/// What one entry of an index does with one axis, or with several.
#[derive(Clone)]
pub enum Index<'a> {
    /// One position, and the axis disappears; negative ones count from the back.
    At(isize),
    /// Positions as Python slices them: negative ends count from the back, ends beyond the axis are
    /// cut, `None` is the natural end.
    Range {
        /// The first position.
        start: Option<isize>,
        /// One past the last.
        stop: Option<isize>,
        /// From one to the next; may be negative, not 0.
        step: isize,
    },
    /// A new axis of size 1.
    NewAxis,
    /// All axes that no other entry speaks of.
    Ellipsis,
    /// Positions as data (i64), or a mask (`bool`) over as many axes as it has.
    Tensor(&'a Tensor),
}

/// One index entry, or a tuple of up to six.
pub trait Indices<'a> {
    /// The entries in order.
    fn entries(self) -> Vec<Index<'a>>;
}

impl<'a, T: Into<Index<'a>>> Indices<'a> for T {
    fn entries(self) -> Vec<Index<'a>> {
        vec![self.into()]
    }
}

impl<'a> Indices<'a> for Vec<Index<'a>> {
    fn entries(self) -> Vec<Index<'a>> {
        self
    }
}

macro_rules! tuples {
    ($(($($T:ident $i:tt),+))*) => {$(
        impl<'a, $($T: Into<Index<'a>>),+> Indices<'a> for ($($T,)+) {
            fn entries(self) -> Vec<Index<'a>> {
                vec![$(self.$i.into()),+]
            }
        }
    )*};
}

tuples! {
    (A 0)
    (A 0, B 1)
    (A 0, B 1, C 2)
    (A 0, B 1, C 2, D 3)
    (A 0, B 1, C 2, D 3, E 4)
    (A 0, B 1, C 2, D 3, E 4, F 5)
}

impl<'a> From<&'a Tensor> for Index<'a> {
    fn from(t: &'a Tensor) -> Self {
        Index::Tensor(t)
    }
}

impl From<NewAxis> for Index<'_> {
    fn from(_: NewAxis) -> Self {
        Index::NewAxis
    }
}

impl From<Ellipsis> for Index<'_> {
    fn from(_: Ellipsis) -> Self {
        Index::Ellipsis
    }
}

impl From<RangeFull> for Index<'_> {
    fn from(_: RangeFull) -> Self {
        Index::Range { start: None, stop: None, step: 1 }
    }
}

impl From<Slice<RangeFull>> for Index<'_> {
    fn from(slice: Slice<RangeFull>) -> Self {
        Index::Range { start: None, stop: None, step: slice.1 }
    }
}

/// One past an included end, which may be the last position counted from the back.
fn after(end: isize) -> Option<isize> {
    (end != -1).then(|| end.saturating_add(1))
}

macro_rules! ranges {
    ($t:ty; $($Range:ty, |$r:ident| $start:expr, $stop:expr;)*) => {$(
        impl From<$Range> for Index<'_> {
            fn from($r: $Range) -> Self {
                Index::Range { start: $start, stop: $stop, step: 1 }
            }
        }
        impl From<Slice<$Range>> for Index<'_> {
            fn from(Slice($r, step): Slice<$Range>) -> Self {
                Index::Range { start: $start, stop: $stop, step }
            }
        }
    )*};
}

macro_rules! integers {
    ($($t:ty)*) => {$(
        impl From<$t> for Index<'_> {
            fn from(at: $t) -> Self {
                Index::At(at as isize)
            }
        }
        ranges! { $t;
            Range<$t>, |r| Some(r.start as isize), Some(r.end as isize);
            RangeFrom<$t>, |r| Some(r.start as isize), None;
            RangeTo<$t>, |r| None, Some(r.end as isize);
            RangeInclusive<$t>, |r| Some(*r.start() as isize), after(*r.end() as isize);
            RangeToInclusive<$t>, |r| None, after(r.end as isize);
        }
    )*};
}

integers!(i32 i64 isize usize);

const OP: &str = "index";

impl Tensor {
    /// The elements that an index names, by NumPy's rules.
    ///
    /// Whole numbers drop their axis, ranges keep it; both are views and cost nothing. Tensors of
    /// whole numbers are broadcast together and replaced by their common shape, in place when they
    /// stand side by side (numbers beside them count as tensors), else in front. A tensor of `bool`
    /// stands for the positions where it is true.
    ///
    /// ```
    /// use thalweg_tensor::{Ellipsis, NewAxis, Slice, Tensor};
    /// let x = Tensor::arange(24).reshape([2, 3, 4]);
    /// assert_eq!(x.i((1, 1..3, -1)).to_vec::<i64>(), [19, 23]);
    /// assert_eq!(x.i((Ellipsis, 0)).to_vec::<i64>(), [0, 4, 8, 12, 16, 20]);
    /// assert_eq!(x.i((0, .., Slice(.., -2))).to_vec::<i64>(), [3, 1, 7, 5, 11, 9]);
    /// assert_eq!(**x.i((.., NewAxis, ..2)).shape(), [2, 1, 2, 4]);
    /// let (rows, columns) = (Tensor::from([0i64, -1]), Tensor::from([1i64, 0]));
    /// assert_eq!(x.i((1, &rows, &columns)).to_vec::<i64>(), [13, 20]);
    /// let big = Tensor::from([false, true]);
    /// assert_eq!(**x.i(&big).shape(), [1, 3, 4]);
    /// ```
    #[track_caller]
    pub fn i<'a>(&self, index: impl Indices<'a>) -> Tensor {
        let plan = or_fail(Plan::new(self.shape(), index.entries()));
        plan.picked(&plan.region(self))
    }

    /// A copy with new values where an index points; they broadcast to the shape of `x.i(index)`.
    /// Where a tensor in the index names a position twice, the last value stays.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let x = Tensor::zeros([2, 3], thalweg_core::DType::F32);
    /// let y = x.index_put((1, 1..), &Tensor::from([5.0f32, 6.0])).index_put((.., 0), 1.0);
    /// assert_eq!(y.to_vec::<f32>(), [1.0, 0.0, 0.0, 1.0, 5.0, 6.0]);
    /// ```
    #[track_caller]
    pub fn index_put<'a, 'b>(&self, index: impl Indices<'a>, values: impl Into<Operand<'b>>) -> Tensor {
        self.put(index.entries(), values.into(), Combine::Set)
    }

    /// A copy with values added where an index points; positions that are named twice add up.
    #[track_caller]
    pub fn index_put_accumulate<'a, 'b>(
        &self,
        index: impl Indices<'a>,
        values: impl Into<Operand<'b>>,
    ) -> Tensor {
        self.put(index.entries(), values.into(), Combine::Add)
    }

    #[track_caller]
    fn put(&self, entries: Vec<Index<'_>>, values: Operand<'_>, combine: Combine) -> Tensor {
        let got = values.dtype_with(self.dtype());
        if got != self.dtype() || matches!(values, Operand::Tensor(t) if t.dtype() != got) {
            let right = if let Operand::Tensor(t) = values { t.dtype() } else { got };
            fail(OpError::DTypes { op: "index_put", left: self.dtype(), right });
        }
        let values = values.spread(self.dtype(), &values.shape());
        let plan = or_fail(Plan::new(self.shape(), entries));
        let region = plan.region(self);
        let new = plan.replaced(&region, &values, combine);
        let shape: Shape = plan.strides.iter().map(|s| s.len).collect();
        if shape == *self.shape() && plan.strides.iter().all(|s| s.step == 1) {
            return new.reshape(shape);
        }
        run(Update { strides: plan.strides }, &[self, &new.reshape(shape)])
    }
}

/// An index in two steps: a region that strides can express, then positions within it.
struct Plan {
    /// The region, one entry per axis of the operand.
    strides: SmallVec<[Stride; 4]>,
    /// The region's shape with new axes in and dropped ones out; axes that tensors index are whole.
    shape: Shape,
    /// What tensors index.
    picked: Option<Picked>,
}

/// Positions along some axes of the region.
struct Picked {
    /// The axes, in the order of the index.
    axes: SmallVec<[usize; 4]>,
    /// One index per axis, broadcast together.
    positions: Vec<Tensor>,
    /// Where the shape of the positions goes, counted in axes of the result.
    place: usize,
}

impl Plan {
    #[track_caller]
    fn new(operand: &Shape, entries: Vec<Index<'_>>) -> Result<Plan, OpError> {
        let entries = whole(operand, entries)?;
        let advanced = entries.iter().any(|e| matches!(e, Index::Tensor(_)));
        let (mut strides, mut shape) = (SmallVec::new(), Shape::scalar());
        let (mut axes, mut positions) = (SmallVec::<[usize; 4]>::new(), Vec::new());
        // The positions among the entries that tensors hold, to see whether they stand side by side.
        let mut places: Vec<usize> = Vec::new();
        let argument = |value: String, need| OpError::Argument {
            op: OP,
            name: "index",
            value,
            shape: operand.clone(),
            need,
        };
        for (k, entry) in entries.iter().enumerate() {
            let axis = strides.len();
            match *entry {
                Index::NewAxis => shape.push(1),
                Index::Ellipsis => {}
                Index::At(i) => {
                    let size = operand[axis];
                    let at = if i < 0 { i + size as isize } else { i };
                    if !(0..size as isize).contains(&at) {
                        return Err(OpError::Index { op: OP, index: i as i64, size });
                    }
                    strides.push(Stride { start: at as usize, len: 1, step: 1 });
                    if advanced {
                        axes.push(shape.rank());
                        places.push(k);
                        positions.push(Tensor::scalar(0i64));
                        shape.push(1);
                    }
                }
                Index::Range { step: 0, .. } => {
                    return Err(argument("step 0".into(), "a step is at least 1, or negative to walk back"));
                }
                Index::Range { start, stop, step } => {
                    let stride = python_slice(operand[axis], start, stop, step);
                    shape.push(stride.len);
                    strides.push(stride);
                }
                Index::Tensor(t) => {
                    let indices = match t.dtype() {
                        DType::Bool => true_positions(operand, axis, t)?,
                        d if d.is_int() => vec![t.to_dtype(DType::I64)],
                        got => return Err(OpError::DType { op: OP, want: "an integer or bool", got }),
                    };
                    for i in indices {
                        let size = operand[strides.len()];
                        strides.push(Stride::all(size));
                        axes.push(shape.rank());
                        positions.push(i);
                        shape.push(size);
                    }
                    places.push(k);
                }
            }
        }
        if !advanced {
            return Ok(Plan { strides, shape, picked: None });
        }
        let common = positions.iter().try_fold(Shape::scalar(), |s, p| s.broadcast(p.shape())).in_op(OP)?;
        let positions = positions.iter().map(|p| p.broadcast_to(&common)).collect();
        let adjacent = places.windows(2).all(|w| w[1] == w[0] + 1);
        let place = if adjacent { axes[0] } else { 0 };
        Ok(Plan { strides, shape, picked: Some(Picked { axes, positions, place }) })
    }

    /// The region of a tensor: a view.
    #[track_caller]
    fn region(&self, x: &Tensor) -> Tensor {
        let whole = self.strides.iter().zip(x.shape().iter()).all(|(s, &d)| *s == Stride::all(d));
        let region =
            if whole { x.clone() } else { run(crate::ops::Slice { strides: self.strides.clone() }, &[x]) };
        region.reshape(&self.shape)
    }

    /// What the index picks of the region.
    #[track_caller]
    fn picked(&self, region: &Tensor) -> Tensor {
        let Some(picked) = &self.picked else { return region.clone() };
        let lined = picked.lined_up(region);
        let slices = lined.index_select(picked.place as isize, &picked.flat(region.shape()));
        slices.reshape(picked.result(lined.shape()))
    }

    /// The region with values written where the index points.
    #[track_caller]
    fn replaced(&self, region: &Tensor, values: &Tensor, combine: Combine) -> Tensor {
        let Some(picked) = &self.picked else {
            let values = or_fail(broadcast(values, &self.shape));
            return if combine == Combine::Add { region + values } else { values };
        };
        let lined = picked.lined_up(region);
        let values = or_fail(broadcast(values, &picked.result(lined.shape())));
        let index = picked.flat(region.shape());
        let slices = values.reshape(lined.shape().with(picked.place, index.numel()));
        let place = picked.place as isize;
        let new = match combine {
            Combine::Add => lined.index_add(place, &index, &slices),
            _ => lined.index_copy(place, &index, &slices),
        };
        picked.back(&new, region.shape())
    }
}

impl Picked {
    /// The picked axes behind one another at their place, the others around them in order.
    fn order(&self, rank: usize) -> Vec<isize> {
        let mut order: Vec<isize> =
            (0..rank).filter(|i| !self.axes.contains(i)).map(|i| i as isize).collect();
        order.splice(self.place..self.place, self.axes.iter().map(|&a| a as isize));
        order
    }

    /// The region with the picked axes taken as one.
    #[track_caller]
    fn lined_up(&self, region: &Tensor) -> Tensor {
        let moved = region.permute(self.order(region.rank()));
        let n: usize = self.axes.iter().map(|&a| region.shape()[a]).product();
        let (before, after) = (&moved.shape()[..self.place], &moved.shape()[self.place + self.axes.len()..]);
        moved.reshape(before.iter().chain([&n]).chain(after).copied().collect::<Shape>())
    }

    /// The inverse of [`Picked::lined_up`] for a region of this shape.
    #[track_caller]
    fn back(&self, lined: &Tensor, region: &Shape) -> Tensor {
        let order = self.order(region.rank());
        let moved: Shape = order.iter().map(|&a| region[a as usize]).collect();
        let mut inverse = vec![0isize; order.len()];
        order.iter().enumerate().for_each(|(i, &a)| inverse[a as usize] = i as isize);
        lined.reshape(moved).permute(inverse)
    }

    /// Positions along the axis that [`Picked::lined_up`] makes.
    #[track_caller]
    fn flat(&self, region: &Shape) -> Tensor {
        let sizes: Vec<usize> = self.axes.iter().map(|&a| region[a]).collect();
        Tensor::flat_index(&self.positions, &sizes).reshape(-1isize)
    }

    /// The shape of the result, from that of the lined up region.
    fn result(&self, lined: &Shape) -> Shape {
        let (before, after) = (&lined[..self.place], &lined[self.place + 1..]);
        before.iter().chain(self.positions[0].shape().iter()).chain(after).copied().collect()
    }
}

fn broadcast(values: &Tensor, shape: &Shape) -> Result<Tensor, OpError> {
    let fits = values.shape().broadcast(shape).is_ok_and(|s| s == *shape);
    if fits {
        return Ok(values.broadcast_to(shape));
    }
    let hint = "the values must broadcast to the shape that the index gives";
    Err(OpError::Shapes { op: "index_put", left: values.shape().clone(), right: shape.clone(), hint })
}

/// The entries with one for every axis: the ellipsis spelled out, whole axes at the end. An ellipsis
/// that stands for no axis stays, as it still separates its neighbours.
fn whole<'a>(operand: &Shape, entries: Vec<Index<'a>>) -> Result<Vec<Index<'a>>, OpError> {
    let argument = |value: String, need| OpError::Argument {
        op: OP,
        name: "index",
        value,
        shape: operand.clone(),
        need,
    };
    let used: usize = entries
        .iter()
        .map(|e| match e {
            Index::NewAxis | Index::Ellipsis => 0,
            Index::Tensor(t) if t.dtype() == DType::Bool => t.rank(),
            _ => 1,
        })
        .sum();
    let Some(left) = operand.rank().checked_sub(used) else {
        return Err(argument(format!("{used} entries"), "at most one entry per axis"));
    };
    if entries.iter().filter(|e| matches!(e, Index::Ellipsis)).count() > 1 {
        return Err(argument("two ellipses".into(), "one ellipsis stands for all axes that are left"));
    }
    let all = || std::iter::repeat_n(Index::Range { start: None, stop: None, step: 1 }, left);
    let mut out = Vec::with_capacity(entries.len() + left);
    let mut spelled = false;
    for entry in entries {
        if let (Index::Ellipsis, 1..) = (&entry, left) {
            out.extend(all());
            spelled = true;
        } else {
            spelled |= matches!(entry, Index::Ellipsis);
            out.push(entry);
        }
    }
    if !spelled {
        out.extend(all());
    }
    Ok(out)
}

/// A mask as one index per axis it covers.
#[track_caller]
fn true_positions(operand: &Shape, axis: usize, mask: &Tensor) -> Result<Vec<Tensor>, OpError> {
    let covered = &operand[axis..axis + mask.rank()];
    if mask.rank() == 0 || covered != &mask.shape()[..] {
        let hint = "a mask needs the sizes of the axes it covers, and covers at least one";
        return Err(OpError::Shapes { op: OP, left: mask.shape().clone(), right: covered.into(), hint });
    }
    mask.decides_shape(OP);
    let positions = mask.nonzero();
    Ok((0..mask.rank()).map(|i| positions.select(1, i as isize)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{value_and_grad, vjp};

    fn grid() -> Tensor {
        Tensor::arange(2 * 3 * 4 * 5).reshape([2, 3, 4, 5])
    }

    /// The element of [`grid`] at a position.
    fn at(i: [usize; 4]) -> i64 {
        (((i[0] * 3 + i[1]) * 4 + i[2]) * 5 + i[3]) as i64
    }

    #[track_caller]
    fn check(got: &Tensor, shape: &[usize], want: &dyn Fn(&[usize]) -> i64) {
        assert_eq!(&got.shape()[..], shape);
        let coordinates = |mut p: usize| {
            let mut c: Vec<usize> = shape.iter().rev().map(|&d| (p % d, p /= d).0).collect();
            c.reverse();
            c
        };
        let want: Vec<i64> = (0..got.numel()).map(|p| want(&coordinates(p))).collect();
        assert_eq!(got.to_vec::<i64>(), want);
    }

    #[test]
    fn numbers_ranges_and_axes_give_views() {
        let x = grid();
        let y = x.i((1, 1.., ..-1, Slice(.., -2)));
        check(&y, &[2, 3, 3], &|c| at([1, 1 + c[0], c[1], 4 - 2 * c[2]]));
        assert!(y.shares_memory_with(&x));
        check(&x.i((-1, Ellipsis, 0..=1, 2usize)), &[3, 2], &|c| at([1, c[0], c[1], 2]));
        check(&x.i((.., NewAxis, 0, ..=-2, Ellipsis, NewAxis)), &[2, 1, 3, 5, 1], &|c| {
            at([c[0], 0, c[2], c[3]])
        });
        check(&x.i(1i64), &[3, 4, 5], &|c| at([1, c[0], c[1], c[2]]));
        check(&x.i((.., 5..)), &[2, 0, 4, 5], &|_| 0);
        check(&x.i(Slice(1.., 2)), &[1, 3, 4, 5], &|c| at([1, c[1], c[2], c[3]]));
        check(&Tensor::scalar(7i64).i(Ellipsis), &[], &|_| 7);
    }

    #[test]
    fn tensors_broadcast_and_go_where_numpy_puts_them() {
        let x = grid();
        let rows = Tensor::from([[0i64], [-1]]);
        let columns = Tensor::from([1i64, 3, 0]);
        let (r, c3) = ([0, 2], [1, 3, 0]);
        // Side by side: in place.
        check(&x.i((.., &rows, &columns)), &[2, 2, 3, 5], &|c| at([c[0], r[c[1]], c3[c[2]], c[3]]));
        // Apart: in front.
        check(&x.i((.., &rows, .., &columns)), &[2, 3, 2, 4], &|c| at([c[2], r[c[0]], c[3], c3[c[1]]]));
        // A number beside a tensor counts as one.
        check(&x.i((1, .., &columns)), &[3, 3, 5], &|c| at([1, c[1], c3[c[0]], c[2]]));
        check(&x.i((1, &rows)), &[2, 1, 4, 5], &|c| at([1, r[c[0]], c[2], c[3]]));
        // With slices on the other axes, and an index of another integer type.
        let few = Tensor::from([2u8, 0]);
        check(&x.i((Slice(.., -1), .., &few, 1..3)), &[2, 3, 2, 2], &|c| {
            at([1 - c[0], c[1], [2, 0][c[2]], 1 + c[3]])
        });
        check(&x.i((.., &Tensor::from(Vec::<i64>::new()))), &[2, 0, 4, 5], &|_| 0);
    }

    #[test]
    fn masks_stand_for_the_positions_where_they_are_true() {
        let x = grid();
        let mask = Tensor::from([[true, false, true], [false, false, true]]);
        let places = [(0, 0), (0, 2), (1, 2)];
        check(&x.i(&mask), &[3, 4, 5], &|c| at([places[c[0]].0, places[c[0]].1, c[1], c[2]]));
        let last = Tensor::from([false, true, false, true, false]);
        check(&x.i((Ellipsis, &last)), &[2, 3, 4, 2], &|c| at([c[0], c[1], c[2], [1, 3][c[3]]]));
        check(&x.i((&mask, .., &Tensor::from([4i64]))), &[3, 4], &|c| {
            at([places[c[0]].0, places[c[0]].1, c[1], 4])
        });
    }

    /// Writing through an index changes exactly what reading through it shows.
    #[test]
    fn what_is_put_is_what_is_read() {
        let x = grid();
        let rows = Tensor::from([[0i64], [2]]);
        let columns = Tensor::from([1i64, 3, 0]);
        let mask = Tensor::from([[true, false, true], [false, false, true]]);
        let indices: Vec<Vec<Index<'_>>> = vec![
            (1, 1.., ..-1, Slice(.., -2)).entries(),
            (Ellipsis, 0).entries(),
            (.., &rows, .., &columns).entries(),
            (Slice(.., -1), &rows, &columns, 1..3).entries(),
            (&mask, .., 1).entries(),
            (0, NewAxis, ..2).entries(),
            Vec::new(),
        ];
        for index in indices {
            let shown = x.i(index.clone());
            let new = Tensor::arange(shown.numel()).reshape(shown.shape()) + 1000;
            let y = x.index_put(index.clone(), &new);
            assert_eq!(y.i(index.clone()).to_vec::<i64>(), new.to_vec::<i64>());
            let changed = y.to_vec::<i64>().iter().zip(x.to_vec::<i64>()).filter(|(a, b)| **a != *b).count();
            assert_eq!(changed, shown.numel());
            let sum = x.index_put_accumulate(index.clone(), &new);
            assert_eq!(sum.i(index).to_vec::<i64>(), (shown + new).to_vec::<i64>());
        }
    }

    #[test]
    fn gradients_of_reading_and_writing_are_each_others() {
        let x = Tensor::from_vec((0..24).map(f64::from).collect(), [2, 3, 4]);
        let rows = Tensor::from([0i64, 2, 0]);
        let (_, dx) = value_and_grad(|x| x.i((.., &rows, 1..3)).sum(()))(&x);
        assert_eq!(dx.i((0, .., 1)).to_vec::<f64>(), [2.0, 0.0, 1.0]);
        assert_eq!(dx.i((0, .., 0)).to_vec::<f64>(), [0.0; 3]);
        let v = Tensor::from_vec((0..12).map(f64::from).collect(), [2, 3, 2]);
        let (_, pull) = vjp(|a| vec![a[0].index_put((.., &rows, 1..3), &a[1])], &[x.clone(), v]);
        let w = Tensor::ones([2, 3, 4], DType::F64);
        let g: Vec<Tensor> = pull.call(&[w]).unwrap().into_iter().map(Option::unwrap).collect();
        assert_eq!(g[0].i((1, .., 2)).to_vec::<f64>(), [0.0, 1.0, 0.0]);
        // Row 0 is named twice: the second value stays, the first has no influence.
        assert_eq!(g[1].i((0, .., 0)).to_vec::<f64>(), [0.0, 1.0, 1.0]);
    }

    fn refusal(f: impl FnOnce() -> Tensor + std::panic::UnwindSafe) -> String {
        let panic = std::panic::catch_unwind(f).expect_err("was accepted");
        panic.downcast_ref::<String>().cloned().unwrap_or_default()
    }

    #[test]
    fn bad_indices_are_refused_with_the_reason() {
        assert!(
            refusal(|| grid().i((0, 3))).starts_with("index: index 3 is out of range for an axis of size 3")
        );
        assert!(refusal(|| grid().i((0, 0, 0, 0, 0))).contains("at most one entry per axis"));
        assert!(refusal(|| grid().i((Ellipsis, Ellipsis))).contains("one ellipsis"));
        assert!(refusal(|| grid().i(Slice(.., 0))).contains("step"));
        assert!(refusal(|| grid().i((.., &Tensor::from([-4i64])))).contains("index -4 is out of range"));
        assert!(refusal(|| grid().i(&Tensor::from([1.0f32]))).contains("dtype f32"));
        assert!(refusal(|| grid().i(&Tensor::from([true]))).contains("shapes [1] and [2]"));
        let wrong = refusal(|| grid().index_put((0, 0), &Tensor::from([1i64, 2, 3])));
        assert!(wrong.contains("[3] and [4, 5]"), "{wrong}");
    }
}
