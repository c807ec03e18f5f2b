//! Picking and writing by index or mask: `take`, `masked_select`, `embedding`, `scatter_reduce`, ….

use thalweg_core::{DType, Shape};

use crate::error::{InOp, OpError, fail, or_fail};
use crate::ops::Combine;
use crate::tensor::Tensor;

/// How values that are written to one position are brought together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reduce {
    /// Their sum.
    Sum,
    /// Their product.
    Prod,
    /// Their mean.
    Mean,
    /// The largest.
    Amax,
    /// The smallest.
    Amin,
}

/// How the rows of a bag become one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bag {
    /// Their sum.
    Sum,
    /// Their mean.
    Mean,
    /// The largest, column by column.
    Max,
}

impl Tensor {
    /// Elements by their row-major position, in the shape of the index; negative positions count
    /// from the back.
    #[track_caller]
    pub fn take(&self, index: &Tensor) -> Tensor {
        let flat = Tensor::flat_index(&[index.as_index().reshape(-1isize)], &[self.numel()]);
        self.reshape(-1isize).index_select(0, &flat).reshape(index.shape())
    }

    /// [`Tensor::gather`] where index and tensor broadcast along the other axes: what `argsort` and
    /// `argmax` with kept axes give back.
    #[track_caller]
    pub fn take_along_dim(&self, index: &Tensor, axis: isize) -> Tensor {
        let axis = or_fail(self.shape().axis(axis).in_op("take_along_dim"));
        if self.rank() != index.rank() {
            let hint = "the index needs as many axes as the tensor";
            let (left, right) = (self.shape().clone(), index.shape().clone());
            fail(OpError::Shapes { op: "take_along_dim", left, right, hint });
        }
        if self.rank() == 0 {
            return self.gather(0, index);
        }
        let common = self.shape().with(axis, 1).broadcast(&index.shape().with(axis, 1));
        let common = or_fail(common.in_op("take_along_dim"));
        let spread = |t: &Tensor| t.broadcast_to(common.with(axis, t.shape()[axis]));
        spread(self).gather(axis as isize, &spread(index))
    }

    /// The elements where a mask is true, as a vector. Tensor and mask broadcast. Looks at the mask,
    /// since it decides the shape.
    #[track_caller]
    pub fn masked_select(&self, mask: &Tensor) -> Tensor {
        let shape = self.common_mask_shape("masked_select", mask);
        mask.decides_shape("masked_select");
        let index = mask.broadcast_to(&shape).flat_positions();
        self.broadcast_to(&shape).reshape(-1isize).index_select(0, &index)
    }

    /// A copy with the elements of `source`, in row-major order, where a mask is true.
    #[track_caller]
    pub fn masked_scatter(&self, mask: &Tensor, source: &Tensor) -> Tensor {
        let shape = self.common_mask_shape("masked_scatter", mask);
        let mask = mask.broadcast_to(&shape);
        if !mask.is_traced() && source.numel() < mask.flat_nonzero().len() {
            let hint = "the source needs an element for each true of the mask";
            let (left, right) = (source.shape().clone(), [mask.flat_nonzero().len()].into());
            fail(OpError::Shapes { op: "masked_scatter", left, right, hint });
        }
        if source.numel() == 0 {
            return self.broadcast_to(&shape);
        }
        // The n-th true takes the n-th element; what stands at a false is not looked at.
        let nth = mask.reshape(-1isize).to_dtype(DType::I64).cumsum(0) - 1i64;
        let taken = source.reshape(-1isize).index_select(0, &nth.maximum(0i64)).reshape(&shape);
        mask.where_(&taken.to_dtype(self.dtype()), &self.broadcast_to(&shape))
    }

    #[track_caller]
    fn common_mask_shape(&self, op: &'static str, mask: &Tensor) -> Shape {
        if mask.dtype() != DType::Bool {
            fail(OpError::DType { op, want: "bool (a mask)", got: mask.dtype() });
        }
        or_fail(self.shape().broadcast(mask.shape()).in_op(op))
    }

    #[track_caller]
    fn flat_positions(&self) -> Tensor {
        Tensor::from(self.flat_nonzero().into_iter().map(|i| i as i64).collect::<Vec<_>>())
    }

    /// For each whole number, a row of `n` zeros with a 1 at its position, as i64.
    #[track_caller]
    pub fn one_hot(&self, n: usize) -> Tensor {
        let index = self.as_index().unsqueeze(-1);
        let zeros = Tensor::zeros(self.shape().inserted(self.rank(), n), DType::I64);
        zeros.scatter_value(-1, &index, 1)
    }

    /// The rows of this matrix that the indices name, in the shape of the indices. The row
    /// `padding_idx`, if any, is used as it is and gets no gradient.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let table = Tensor::from([[0.0f32, 0.0], [1.0, 2.0]]);
    /// assert_eq!(table.embedding(&Tensor::from([[1i64, 0]]), None).to_vec::<f32>(), [1.0, 2.0, 0.0, 0.0]);
    /// ```
    #[track_caller]
    pub fn embedding(&self, index: &Tensor, padding_idx: Option<usize>) -> Tensor {
        if self.rank() != 2 {
            fail(OpError::Rank {
                op: "embedding",
                want: "2 (rows to choose from)",
                shape: self.shape().clone(),
            });
        }
        let shape = index.shape().inserted(index.rank(), self.shape()[1]);
        let rows = self.index_select(0, &index.as_index().reshape(-1isize)).reshape(shape);
        match padding_idx {
            Some(p) if rows.is_tracked() => {
                index.as_index().eq(p).unsqueeze(-1).where_(&rows.stop_gradient(), &rows)
            }
            _ => rows,
        }
    }

    /// Bags of rows of this matrix, each made into one row. `offsets` says where each bag starts in
    /// `index`; the last ends with it. An empty bag gives zeros. Outside `jit` the offsets are checked.
    #[track_caller]
    pub fn embedding_bag(&self, index: &Tensor, offsets: &Tensor, mode: Bag) -> Tensor {
        if index.rank() != 1 || offsets.rank() != 1 || !offsets.dtype().is_int() {
            let hint = "indices and offsets are vectors of whole numbers";
            let (left, right) = (index.shape().clone(), offsets.shape().clone());
            fail(OpError::Shapes { op: "embedding_bag", left, right, hint });
        }
        let (n, offsets) = (index.numel() as i64, offsets.to_dtype(DType::I64));
        let starts = if offsets.is_traced() { Vec::new() } else { offsets.to_vec::<i64>() };
        if starts.first().is_some_and(|&s| s != 0)
            || !starts.is_sorted()
            || starts.last().is_some_and(|&s| s > n)
        {
            let (value, shape) = (format!("{starts:?}"), index.shape().clone());
            let need = "offsets start at 0, never fall, and stay inside the indices";
            fail(OpError::Argument { op: "embedding_bag", name: "offsets", value, shape, need });
        }
        // A position belongs to the last bag that starts at or before it.
        let bag = offsets.searchsorted(&Tensor::arange(index.numel()), true) - 1i64;
        let n_bags = offsets.numel();
        let ends = match n_bags {
            0 => offsets.clone(),
            _ => Tensor::concat(&[&offsets.narrow(0, 1, n_bags - 1), &Tensor::from([n])], 0),
        };
        let counts = ends - &offsets;
        let rows = self.embedding(index, None);
        let shape = [n_bags, self.shape()[1]];
        let zeros = Tensor::zeros(shape, self.dtype());
        match mode {
            Bag::Sum => zeros.index_add(0, &bag, &rows),
            Bag::Mean => {
                let counts = counts.maximum(1i64).to_dtype(self.dtype());
                zeros.index_add(0, &bag, &rows) / counts.unsqueeze(-1)
            }
            Bag::Max => {
                let lowest = Tensor::full(shape, f64::NEG_INFINITY, self.dtype());
                let largest = lowest.index_combine("embedding_bag", 0, &bag, &rows, Combine::Max);
                counts.eq(0i64).unsqueeze(-1).where_(&zeros, &largest)
            }
        }
    }

    /// A copy where each position of the index holds its values brought together: for axis 1,
    /// `y[i, j]` is made of all `source[i, k]` with `index[i, k] = j`. What stood there before takes
    /// part if `include_self`; where the index does not point it stays in any case.
    ///
    /// Gradients of `Amax` and `Amin` are shared evenly among equals.
    #[track_caller]
    pub fn scatter_reduce(
        &self,
        axis: isize,
        index: &Tensor,
        source: &Tensor,
        reduce: Reduce,
        include_self: bool,
    ) -> Tensor {
        let (combine, identity) = match reduce {
            Reduce::Sum | Reduce::Mean => (Combine::Add, 0.0),
            Reduce::Prod => (Combine::Mul, 1.0),
            Reduce::Amax => (Combine::Max, f64::NEG_INFINITY),
            Reduce::Amin => (Combine::Min, f64::INFINITY),
        };
        if reduce == Reduce::Mean && !self.dtype().is_float() {
            fail(OpError::DType {
                op: "scatter_reduce",
                want: "a float, which a mean needs",
                got: self.dtype(),
            });
        }
        let base = match include_self {
            true => self.clone(),
            false if self.dtype().is_float() => self.scatter_value(axis, index, identity),
            // The extremes of an integer type are what its own conversion makes of infinity.
            false => {
                let identity = Tensor::full((), identity, DType::F64).to_dtype(self.dtype());
                self.scatter(axis, index, &identity.broadcast_to(index.shape()))
            }
        };
        let merged = base.combine_at(axis, index, source, combine);
        if reduce != Reduce::Mean {
            return merged;
        }
        let ones = Tensor::ones(index.shape(), self.dtype());
        let own =
            if include_self { self.ones_like() } else { self.ones_like().scatter_value(axis, index, 0) };
        merged / own.stop_gradient().scatter_add(axis, index, &ones)
    }
}
