//! Products of tensors that come down to `matmul` or to an elementwise product.

use thalweg_core::Shape;

use crate::args::Axes;
use crate::error::{InOp, OpError, fail, or_fail};
use crate::functions::einsum::{Labelled, contract};
use crate::tensor::Tensor;

/// How the terms of [`Tensor::addmm`] and [`Tensor::baddbmm`] are weighed.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AddmmOptions {
    /// The factor of the product.
    pub alpha: f64,
    /// The factor of what is added. With 0 it is not read, so that NaN there does no harm.
    pub beta: f64,
}

impl Default for AddmmOptions {
    fn default() -> Self {
        Self { alpha: 1.0, beta: 1.0 }
    }
}

impl Tensor {
    /// yₒ = Σᵢⱼ xᵢ wₒᵢⱼ zⱼ + bₒ over the last axes: `weight` is (out, in, other in), `bias` (out).
    #[track_caller]
    pub fn bilinear(&self, other: &Tensor, weight: &Tensor, bias: Option<&Tensor>) -> Tensor {
        let fits = weight.rank() == 3 && self.rank() > 0 && other.rank() > 0;
        if !fits || self.size(-1) != weight.size(1) || other.size(-1) != weight.size(2) {
            let hint = "the weight is (out, in, other in), as the last axes of the two inputs";
            let (left, right) = (self.shape().clone(), weight.shape().clone());
            fail(OpError::Shapes { op: "bilinear", left, right, hint });
        }
        let product = Tensor::einsum("...i,oij,...j->...o", &[self, weight, other]);
        match bias {
            Some(bias) => product + bias,
            None => product,
        }
    }

    /// yᵢⱼ = aᵢ bⱼ for two vectors.
    #[track_caller]
    pub fn outer(&self, other: &Tensor) -> Tensor {
        for x in [self, other] {
            if x.rank() != 1 {
                fail(OpError::Rank {
                    op: "outer",
                    want: "1 (see `tensordot` or `einsum`)",
                    shape: x.shape().clone(),
                });
            }
        }
        self.unsqueeze(-1) * other.unsqueeze(0)
    }

    /// β self + α a b for two matrices; `self` broadcasts to the product.
    #[track_caller]
    pub fn addmm(&self, a: &Tensor, b: &Tensor, options: AddmmOptions) -> Tensor {
        self.add_product("addmm", 2, a, b, options)
    }

    /// [`Tensor::addmm`] for each pair of two batches of matrices.
    #[track_caller]
    pub fn baddbmm(&self, a: &Tensor, b: &Tensor, options: AddmmOptions) -> Tensor {
        self.add_product("baddbmm", 3, a, b, options)
    }

    #[track_caller]
    fn add_product(
        &self,
        op: &'static str,
        rank: usize,
        a: &Tensor,
        b: &Tensor,
        options: AddmmOptions,
    ) -> Tensor {
        if a.rank() != rank || b.rank() != rank {
            let hint = if rank == 2 { "both must be matrices" } else { "both must be batches of matrices" };
            fail(OpError::Shapes { op, left: a.shape().clone(), right: b.shape().clone(), hint });
        }
        let scaled = |x: Tensor, by: f64| if by == 1.0 { x } else { x * by };
        let product = scaled(a.matmul(b), options.alpha);
        let added = self.broadcast_to(product.shape());
        if options.beta == 0.0 { product } else { product + scaled(added, options.beta) }
    }

    /// The sum of products over pairs of axes: the k-th of `axes` with the k-th of `other_axes`. What
    /// remains are the other axes of this tensor, then those of the other.
    #[track_caller]
    pub fn tensordot(&self, other: &Tensor, axes: impl Into<Axes>, other_axes: impl Into<Axes>) -> Tensor {
        let list = |x: &Tensor, axes: Axes| or_fail(x.shape().axes(&axes.list(x.rank())).in_op("tensordot"));
        let (mine, theirs) = (list(self, axes.into()), list(other, other_axes.into()));
        let sizes = |x: &Tensor, axes: &[usize]| axes.iter().map(|&a| x.shape()[a]).collect::<Shape>();
        if sizes(self, &mine) != sizes(other, &theirs) {
            let hint = "the summed axes must agree in number and size";
            let (left, right) = (self.shape().clone(), other.shape().clone());
            fail(OpError::Shapes { op: "tensordot", left, right, hint });
        }
        let mut labels: Vec<usize> = (0..other.rank()).map(|i| self.rank() + i).collect();
        mine.iter().zip(&theirs).for_each(|(&a, &b)| labels[b] = a);
        let a = Labelled { tensor: self.clone(), labels: (0..self.rank()).collect() };
        let b = Labelled { tensor: other.clone(), labels };
        let stays = |l: &usize| a.labels.contains(l) != b.labels.contains(l);
        let keep: Vec<usize> = a.labels.iter().chain(&b.labels).copied().filter(stays).collect();
        contract(a, b, &keep).arranged(&keep)
    }

    /// The Kronecker product: every element of this tensor times the whole other tensor, in blocks.
    #[track_caller]
    pub fn kron(&self, other: &Tensor) -> Tensor {
        let rank = self.rank().max(other.rank());
        let padded = |x: &Tensor| -> Vec<usize> {
            std::iter::repeat_n(1, rank - x.rank()).chain(x.shape().iter().copied()).collect()
        };
        let (a, b) = (padded(self), padded(other));
        let outer: Shape = a.iter().flat_map(|&d| [d, 1]).collect();
        let inner: Shape = b.iter().flat_map(|&d| [1, d]).collect();
        let blocks = self.reshape(outer) * other.reshape(inner);
        blocks.reshape(a.iter().zip(&b).map(|(a, b)| a * b).collect::<Shape>())
    }

    /// The cross product of vectors of three along an axis; other axes broadcast.
    #[track_caller]
    pub fn cross(&self, other: &Tensor, axis: isize) -> Tensor {
        let shape = or_fail(self.shape().broadcast(other.shape()).in_op("cross"));
        let axis = or_fail(shape.axis(axis).in_op("cross"));
        if shape.get(axis) != Some(&3) {
            let hint = "vectors of three are needed along the axis";
            fail(OpError::Shapes {
                op: "cross",
                left: self.shape().clone(),
                right: other.shape().clone(),
                hint,
            });
        }
        let turned = |x: &Tensor, by: usize| {
            let (x, axis) = (x.broadcast_to(&shape), axis as isize);
            Tensor::concat(&[x.narrow(axis, by, 3 - by), x.narrow(axis, 0, by)], axis)
        };
        turned(self, 1) * turned(other, 2) - turned(self, 2) * turned(other, 1)
    }
}
