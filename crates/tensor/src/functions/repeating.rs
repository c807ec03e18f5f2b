//! Elements again and again: `repeat`, `repeat_interleave`, `meshgrid`; and `rot90`.

use thalweg_core::{DType, Shape};

use crate::args::Dims;
use crate::error::{InOp, OpError, fail, or_fail};
use crate::tensor::Tensor;

impl Tensor {
    /// The whole tensor again and again along each axis; counts beyond the tensor's axes make new
    /// leading ones. (`torch.Tensor.repeat`, `numpy.tile`.)
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// assert_eq!(Tensor::arange(2).repeat([2, 2]).to_vec::<i64>(), [0, 1, 0, 1, 0, 1, 0, 1]);
    /// ```
    #[track_caller]
    pub fn repeat(&self, repeats: impl Into<Dims>) -> Tensor {
        let repeats: Vec<isize> = repeats.into().iter().collect();
        let Some(lead) = repeats.len().checked_sub(self.rank()).filter(|_| repeats.iter().all(|&r| r >= 0))
        else {
            let (value, shape) = (format!("{repeats:?}"), self.shape().clone());
            let need = "a count of at least 0 for each axis";
            fail(OpError::Argument { op: "repeat", name: "repeats", value, shape, need });
        };
        let repeats: Vec<usize> = repeats.into_iter().map(|r| r as usize).collect();
        // Each axis n becomes (r, n), where r repeats without copying.
        let size = |i: usize| if i < lead { 1 } else { self.shape()[i - lead] };
        let pairs = |f: &dyn Fn(usize) -> usize| -> Shape {
            (0..repeats.len()).flat_map(|i| [f(i), size(i)]).collect()
        };
        let shape: Shape = (0..repeats.len()).map(|i| repeats[i] * size(i)).collect();
        self.reshape(pairs(&|_| 1)).broadcast_to(pairs(&|i| repeats[i])).reshape(shape)
    }

    /// Each element `repeats` times along an axis, next to itself.
    #[track_caller]
    pub fn repeat_interleave(&self, repeats: usize, axis: isize) -> Tensor {
        let axis = or_fail(self.shape().axis(axis).in_op("repeat_interleave"));
        let x = if self.rank() == 0 { self.reshape(1) } else { self.clone() };
        let spread = x.shape().inserted(axis + 1, repeats);
        let shape = x.shape().with(axis, x.shape()[axis] * repeats);
        x.reshape(x.shape().inserted(axis + 1, 1)).broadcast_to(spread).reshape(shape)
    }

    /// Each slice along an axis as often as its entry in `counts` says. Looks at the counts, since
    /// they decide the shape.
    #[track_caller]
    pub fn repeat_interleave_counts(&self, counts: &Tensor, axis: isize) -> Tensor {
        if counts.rank() != 1 || counts.numel() != self.size(axis) || !counts.dtype().is_int() {
            let hint = "the counts are a vector of whole numbers, one per slice";
            let (left, right) = (self.shape().clone(), counts.shape().clone());
            fail(OpError::Shapes { op: "repeat_interleave", left, right, hint });
        }
        counts.decides_shape("repeat_interleave_counts");
        let counts = counts.to_dtype(DType::I64).to_vec::<i64>();
        if let Some(&index) = counts.iter().find(|&&c| c < 0) {
            let (value, shape) = (index.to_string(), self.shape().clone());
            fail(OpError::Argument {
                op: "repeat_interleave",
                name: "counts",
                value,
                shape,
                need: "at least 0",
            });
        }
        let index = counts.iter().enumerate().flat_map(|(i, &c)| std::iter::repeat_n(i as i64, c as usize));
        self.index_select(axis, &Tensor::from(index.collect::<Vec<i64>>()))
    }

    /// Turned by `k` quarters from the first of two axes towards the second.
    #[track_caller]
    pub fn rot90(&self, k: isize, axis0: isize, axis1: isize) -> Tensor {
        let axes = or_fail(self.shape().axes(&[axis0, axis1]).in_op("rot90"));
        let (a, b) = (axes[0] as isize, axes[1] as isize);
        if self.rank() < 2 {
            fail(OpError::Rank { op: "rot90", want: "at least 2", shape: self.shape().clone() });
        }
        match k.rem_euclid(4) {
            0 => self.clone(),
            1 => self.flip(b).transpose(a, b),
            2 => self.flip([a, b]),
            _ => self.flip(a).transpose(a, b),
        }
    }

    /// The coordinates of a grid: of `n` vectors, `n` tensors with one axis per vector, each constant
    /// along all axes but its own. (Indexing "ij".) They are views.
    #[track_caller]
    pub fn meshgrid<T: std::borrow::Borrow<Tensor>>(vectors: &[T]) -> Vec<Tensor> {
        let sizes: Shape = vectors.iter().map(|v| v.borrow().numel()).collect();
        let spread = |(i, v): (usize, &T)| {
            let v = v.borrow();
            if v.rank() > 1 {
                fail(OpError::Rank { op: "meshgrid", want: "1", shape: v.shape().clone() });
            }
            let column: Shape = (0..vectors.len()).map(|k| if k == i { v.numel() } else { 1 }).collect();
            v.reshape(column).broadcast_to(&sizes)
        };
        vectors.iter().enumerate().map(spread).collect()
    }
}
