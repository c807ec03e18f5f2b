//! What is made from the sorted order: `sort`, `topk`, `kthvalue`, `median_dim`, `unique`, `bincount`.

use thalweg_core::{DType, Element, Shape, with_dtype};

use crate::error::{OpError, fail};
use crate::tensor::Tensor;

/// What [`Tensor::unique`] finds.
#[derive(Clone)]
pub struct Unique {
    /// The different elements, ascending.
    pub values: Tensor,
    /// For each element, its position among the values; in the shape of the operand.
    pub inverse: Tensor,
    /// How often each value occurs.
    pub counts: Tensor,
}

impl Tensor {
    /// The elements of an axis in order, and the positions they came from. Equal elements keep their
    /// order; NaN counts as the largest.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let (values, positions) = Tensor::from([2.0f32, f32::NAN, 1.0]).sort(0, false);
    /// assert_eq!(values.to_vec::<f32>()[..2], [1.0, 2.0]);
    /// assert_eq!(positions.to_vec::<i64>(), [2, 0, 1]);
    /// ```
    #[track_caller]
    pub fn sort(&self, axis: isize, descending: bool) -> (Tensor, Tensor) {
        let order = self.first_positions("sort", axis, descending, None);
        (self.gather(axis, &order), order)
    }

    /// The `k` largest elements of an axis, largest first, or the smallest, smallest first; and the
    /// positions they came from.
    #[track_caller]
    pub fn topk(&self, k: usize, axis: isize, largest: bool) -> (Tensor, Tensor) {
        self.require_k("topk", k, axis, 0);
        // Of a scalar there is one element to sort, or none.
        let order = match self.rank() {
            0 if k == 0 => Tensor::zeros(0, DType::I64),
            _ => self.first_positions("topk", axis, largest, Some(k)),
        };
        let values = if self.rank() == 0 { self.expand(order.shape()) } else { self.gather(axis, &order) };
        (values, order)
    }

    /// The `k`-th smallest element of an axis, counted from 1, and its position.
    #[track_caller]
    pub fn kthvalue(&self, k: usize, axis: isize) -> (Tensor, Tensor) {
        self.require_k("kthvalue", k, axis, 1);
        if self.rank() == 0 {
            return (self.clone(), Tensor::scalar(0i64));
        }
        let order =
            self.first_positions("kthvalue", axis, false, Some(k)).slice(axis, Some(k as isize - 1), None, 1);
        (self.gather(axis, &order).squeeze(axis), order.squeeze(axis))
    }

    /// The median of an axis, and its position; of an even number of elements the smaller one in the
    /// middle. NaN if there is one.
    #[track_caller]
    pub fn median_dim(&self, axis: isize) -> (Tensor, Tensor) {
        let n = self.size(axis);
        if n == 0 {
            fail(OpError::Empty { op: "median_dim", shape: self.shape().clone() });
        }
        if self.rank() == 0 {
            return (self.clone(), Tensor::scalar(0i64));
        }
        let order = self.first_positions("median_dim", axis, false, None);
        // NaN sorts last: the first of them, where there are any.
        let nans = self.isnan().to_dtype(DType::I64).sum_keepdim(axis);
        let place = nans.eq(0).where_((n as i64 - 1) / 2, &(n as i64 - &nans));
        let position = order.gather(axis, &place);
        (self.gather(axis, &position).squeeze(axis), position.squeeze(axis))
    }

    #[track_caller]
    fn require_k(&self, op: &'static str, k: usize, axis: isize, least: usize) {
        if !(least..=self.size(axis)).contains(&k) {
            let (value, shape) = (k.to_string(), self.shape().clone());
            fail(OpError::Argument { op, name: "k", value, shape, need: "at most the size of the axis" });
        }
    }

    /// The different elements in ascending order, where each element went, and how often each occurs.
    /// Every NaN is different. Looks at values, so it has no gradient.
    #[track_caller]
    pub fn unique(&self) -> Unique {
        self.decides_shape("unique");
        let flat = self.stop_gradient().reshape(-1isize);
        let (sorted, order) = flat.sort(0, false);
        let starts = with_dtype!(flat.dtype(), T => starts::<T>(&sorted.to_vec()));
        let ends = starts.iter().skip(1).copied().chain([flat.numel() as i64]);
        let counts: Vec<i64> = starts.iter().zip(ends).map(|(s, e)| e - s).collect();
        let group = counts.iter().enumerate().flat_map(|(i, &n)| std::iter::repeat_n(i as i64, n as usize));
        let group = Tensor::from(group.collect::<Vec<i64>>());
        Unique {
            values: sorted.index_select(0, &Tensor::from(starts)),
            inverse: group.zeros_like().scatter(0, &order, &group).reshape(self.shape()),
            counts: Tensor::from(counts),
        }
    }

    /// How often each of 0, 1, … occurs in a tensor of whole numbers, up to the largest or to
    /// `min_length`.
    #[track_caller]
    pub fn bincount(&self, min_length: usize) -> Tensor {
        if !self.dtype().is_int() {
            fail(OpError::DType { op: "bincount", want: "an integer", got: self.dtype() });
        }
        self.decides_shape("bincount");
        let values = self.to_dtype(DType::I64).reshape(-1isize);
        let all = values.to_vec::<i64>();
        if let Some(&index) = all.iter().find(|&&i| i < 0) {
            fail(OpError::Index { op: "bincount", index, size: usize::MAX });
        }
        let n = all.iter().max().map_or(0, |&m| m as usize + 1).max(min_length);
        let counts = Tensor::zeros(n, DType::I64);
        counts.index_add(0, &values, &values.ones_like())
    }

    /// The positions of all elements that are not zero, one row per element.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let x = Tensor::from([[0i64, 5], [7, 0]]);
    /// assert_eq!(x.nonzero().to_vec::<i64>(), [0, 1, 1, 0]);
    /// ```
    #[track_caller]
    pub fn nonzero(&self) -> Tensor {
        self.decides_shape("nonzero");
        let flat = self.flat_nonzero();
        let mut rows = Vec::with_capacity(flat.len() * self.rank());
        for &p in &flat {
            let mut rest = p;
            let start = rows.len();
            for &d in self.shape().iter().rev() {
                rows.push((rest % d) as i64);
                rest /= d;
            }
            rows[start..].reverse();
        }
        Tensor::from_vec(rows, Shape::from([flat.len(), self.rank()]))
    }

    /// The row-major positions of all elements that are not zero.
    #[track_caller]
    pub(crate) fn flat_nonzero(&self) -> Vec<usize> {
        let found = self.to_dtype(DType::Bool).to_vec::<bool>();
        found.iter().enumerate().filter(|(_, x)| **x).map(|(i, _)| i).collect()
    }
}

/// Where runs of equal elements start.
fn starts<T: Element>(sorted: &[T]) -> Vec<i64> {
    (0..sorted.len()).filter(|&i| i == 0 || sorted[i] != sorted[i - 1]).map(|i| i as i64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_elements_keep_their_order_and_nan_is_the_largest() {
        let x = Tensor::from([0.0f32, f32::NAN, -0.0, f32::INFINITY, 1.0, f32::NAN, f32::NEG_INFINITY, 0.0]);
        assert_eq!(x.argsort(0, false).to_vec::<i64>(), [6, 0, 2, 7, 4, 3, 1, 5]);
        assert_eq!(x.argsort(0, true).to_vec::<i64>(), [1, 5, 3, 4, 0, 2, 7, 6]);
        // The general kernel and the one for rows of the last axis agree.
        assert_eq!(x.unsqueeze(1).argsort(0, true).to_vec::<i64>(), x.argsort(0, true).to_vec::<i64>());
        assert_eq!(x.topk(3, 0, true).1.to_vec::<i64>(), [1, 5, 3]);
        assert_eq!(x.median_dim(0).1.item::<i64>(), 1);
        let wide = Tensor::from([i64::MAX, i64::MIN, i64::MAX - 1, 0]);
        assert_eq!(wide.argsort(0, false).to_vec::<i64>(), [1, 3, 2, 0]);
        assert_eq!(wide.median_dim(0).0.item::<i64>(), 0);
        assert_eq!(Tensor::from([u32::MAX, 0, 1 << 31]).argsort(0, false).to_vec::<i64>(), [1, 2, 0]);
    }

    #[test]
    fn unique_elements_rebuild_the_tensor() {
        let x = Tensor::from([[3i64, 1, 3], [2, 1, 3]]);
        let u = x.unique();
        assert_eq!(u.values.take(&u.inverse).to_vec::<i64>(), x.to_vec::<i64>());
        assert_eq!(u.counts.to_vec::<i64>(), [2, 1, 3]);
        assert_eq!(Tensor::from([f32::NAN, f32::NAN]).unique().values.numel(), 2);
        assert_eq!(Tensor::arange(0).unique().values.numel(), 0);
    }

    #[test]
    fn counts_reach_the_asked_length() {
        let x = Tensor::from([1i64, 3, 1]);
        assert_eq!(x.bincount(0).to_vec::<i64>(), [0, 2, 0, 1]);
        assert_eq!(x.bincount(6).to_vec::<i64>(), [0, 2, 0, 1, 0, 0]);
        assert_eq!(Tensor::arange(0).bincount(0).numel(), 0);
    }

    #[test]
    fn positions_of_scalars_have_no_coordinates() {
        assert_eq!(**Tensor::scalar(5i64).nonzero().shape(), [1, 0]);
        assert_eq!(**Tensor::scalar(0i64).nonzero().shape(), [0, 0]);
    }
}
