//! `matmul`: y[i, j] = Σₖ a[i, k] · b[k, j] for two matrices, or for each pair of two equally long
//! batches of them. `Tensor::matmul` brings vectors and broadcast batches into this form.

use smallvec::SmallVec;
use thalweg_core::{Buffer, DType, Element, Layout, Shape, View, ViewMut, with_dtype};
use thalweg_kernels::gemm::{self, MatRef, OnReady};
use thalweg_kernels::stream::convert::{cast, f16_to_f32, f32_to_f16};
use thalweg_kernels::stream::split::par_chunks_mut;

use crate::apply::run;
use crate::error::{InOp, OpError, fail, or_fail};
use crate::meta::{Meta, arity, require_number, require_same_dtype};
use crate::ops::elementwise::{GRAIN, Wide};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// (M, K) · (K, N) → (M, N), or (B, M, K) · (B, K, N) → (B, M, N).
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Matmul;

impl Primitive for Matmul {
    const NAME: &'static str = "matmul";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [a, b] = arity(Self::NAME, x)?;
        require_number(Self::NAME, a)?;
        require_same_dtype(Self::NAME, a, b)?;
        match (&*a.shape, &*b.shape) {
            (&[m, k], &[k2, n]) if k == k2 => Ok(a.with_shape([m, n])),
            (&[batch, m, k], &[batch2, k2, n]) if (batch, k) == (batch2, k2) => {
                Ok(a.with_shape([batch, m, n]))
            }
            _ => Err(misfit(&a.shape, &b.shape)),
        }
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::input(1))
    }

    /// da = dy · bᵀ; db = aᵀ · dy.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        g.pair(|| run(Matmul, &[g.dy(), &g.x(1).t()]), || run(Matmul, &[&g.x(0).t(), g.dy()]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let (a, b) = (x[0], x[1]);
        if y.dtype().is_float() {
            with_dtype!(y.dtype(), T => reference::<f64, T>(a, b, y, |acc, a, b| acc + a * b));
        } else {
            with_dtype!(y.dtype(), T => reference::<i64, T>(a, b, y, |acc, a, b| acc.wrapping_add(a.wrapping_mul(b))));
        }
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let (n_batch, m, n) = sizes(y.shape());
        macro_rules! product {
            ($T:ty, $gemm:path) => {{
                let (Some(a), Some(b)) = (batch::<$T>(x[0]), batch::<$T>(x[1])) else { return false };
                let c = gemm::BatchMut { data: y.dense::<$T>(), batch_stride: m * n, ldc: n };
                $gemm(n_batch, a, b, c, false);
            }};
        }
        match y.dtype() {
            DType::F32 => product!(f32, gemm::gemm_batched_f32),
            DType::F64 => product!(f64, gemm::gemm_batched_f64),
            DType::F16 => return halves([x[0], x[1]], y, f16_to_f32, f32_to_f16),
            DType::BF16 => {
                return tiles([x[0], x[1]], y) || halves::<half::bf16>([x[0], x[1]], y, cast, cast);
            }
            _ => return false,
        }
        true
    }

    fn is_ready_in_pieces(&self) -> bool {
        true
    }

    fn fast_then(&self, x: &[View<'_>], y: &mut ViewMut<'_>, ready: &OnReady<'_>) -> bool {
        if y.dtype() != DType::F32 {
            return false;
        }
        let (n_batch, m, n) = sizes(y.shape());
        let (Some(a), Some(b)) = (batch::<f32>(x[0]), batch::<f32>(x[1])) else { return false };
        let c = gemm::BatchMut { data: y.dense::<f32>(), batch_stride: m * n, ldc: n };
        gemm::gemm_batched_then_f32(n_batch, a, b, c, Some(ready));
        true
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 2 * (y.numel() * sizes(&x[0].shape).2) as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |b: usize, m: usize, k: usize, n: usize| {
            Sample::new(Matmul, [Draw::any([b, m, k]), Draw::any([b, k, n])])
        };
        let plain = Sample::new(Matmul, [Draw::any([3, 4]), Draw::any([4, 2])]);
        vec![
            plain,
            call(1, 3, 4, 5),
            call(2, 3, 4, 2),
            call(1, 17, 5, 3),
            call(1, 3, 0, 2),
            call(0, 2, 3, 4),
            call(1, 1, 7, 1),
            call(1, 2, 33, 19),
        ]
    }
}

/// The product of bf16 matrices by the instructions that are made for it, where the CPU has them.
fn tiles([a, b]: [View<'_>; 2], y: &mut ViewMut<'_>) -> bool {
    let (n_batch, m, n) = sizes(y.shape());
    let (Some(a), Some(b)) = (batch(a), batch(b)) else { return false };
    let c = gemm::BatchMut { data: y.dense::<half::bf16>(), batch_stride: m * n, ldc: n };
    gemm::gemm_batched_bf16(n_batch, a, b, c)
}

/// Rows of a half precision operand that are widened at a time.
const PANEL: usize = 256;

/// The product of half precision matrices in f32: the right operand is widened whole, the left one a panel of
/// rows at a time, and each panel of the result is rounded once.
fn halves<T: Element>(
    [a, b]: [View<'_>; 2],
    y: &mut ViewMut<'_>,
    widen: fn(&[T], &mut [f32]),
    round: fn(&[f32], &mut [T]),
) -> bool {
    let ((n_batch, m, n), (_, _, k)) = (sizes(y.shape()), sizes(a.shape()));
    let (y, a_memory, b_memory) = (y.dense::<T>(), a.memory::<T>(), b.memory::<T>());
    let [mut left, mut right, mut out] =
        [PANEL.min(m) * k, k * n, PANEL.min(m) * n].map(|len| Buffer::scratch(DType::F32, len));
    for i in 0..n_batch {
        let (a, b) = (one_of_batch(a.layout(), i), one_of_batch(b.layout(), i));
        let b = widened(b_memory, &b, widen, right.as_mut_slice());
        for start in (0..m).step_by(PANEL) {
            let rows = PANEL.min(m - start);
            let out = &mut out.as_mut_slice::<f32>()[..rows * n];
            let a = widened(a_memory, &a.slice(0, start, rows, 1), widen, left.as_mut_slice());
            gemm::gemm_f32(a, b, out, n, false);
            let out = &*out;
            par_chunks_mut(&mut y[(i * m + start) * n..][..rows * n], GRAIN, |from, y| {
                round(&out[from..from + y.len()], y);
            });
        }
    }
    true
}

/// One matrix of a batch; the matrix itself where there is no batch.
fn one_of_batch(layout: &Layout, i: usize) -> Layout {
    if layout.shape().rank() == 3 { layout.select(0, i) } else { layout.clone() }
}

/// A matrix as dense f32, with its rows or its columns together as they lie in memory.
fn widened<'b, T: Element>(
    memory: &[T],
    layout: &Layout,
    widen: fn(&[T], &mut [f32]),
    to: &'b mut [f32],
) -> MatRef<'b, f32> {
    if layout.strides()[0].abs() < layout.strides()[1].abs() {
        return widened(memory, &layout.permute(&[1, 0]), widen, to).t();
    }
    let (rows, cols) = (layout.shape()[0], layout.shape()[1]);
    let to = &mut to[..rows * cols];
    let (first, [by_row, by_col]) = (layout.offset() as isize, [layout.strides()[0], layout.strides()[1]]);
    par_chunks_mut(to, (GRAIN / cols.max(1)).max(1) * cols, |start, to| {
        for (row, to) in (start / cols..).zip(to.chunks_exact_mut(cols)) {
            let first = first + row as isize * by_row;
            if by_col == 1 {
                widen(&memory[first as usize..][..cols], to);
                continue;
            }
            for (piece, to) in to.chunks_mut(64).enumerate() {
                let at = |c: usize| memory[(first + (piece * 64 + c) as isize * by_col) as usize];
                let straight: SmallVec<[T; 64]> = (0..to.len()).map(at).collect();
                widen(&straight, to);
            }
        }
    });
    MatRef::row_major(to, rows, cols)
}

fn reference<W: Wide, T: Element>(a: View<'_>, b: View<'_>, y: &mut ViewMut<'_>, f: impl Fn(W, W, W) -> W) {
    let ((_, m, n), (_, _, k)) = (sizes(y.shape()), sizes(a.shape()));
    let (a, b): (Vec<T>, Vec<T>) = (a.iter().collect(), b.iter().collect());
    for (i, y) in y.dense::<T>().iter_mut().enumerate() {
        let (batch, row, col) = (i / (m * n), i / n % m, i % n);
        let term = |l: usize| (a[(batch * m + row) * k + l], b[(batch * k + l) * n + col]);
        let sum = (0..k).map(term).fold(W::default(), |acc, (a, b)| f(acc, W::widen(a), W::widen(b)));
        *y = sum.narrow();
    }
}

/// The operand as the kernel wants it, unless a stride is negative.
fn batch<'a, T: Element>(x: View<'a>) -> Option<gemm::BatchRef<'a, T>> {
    let (_, rows, cols) = sizes(x.shape());
    let strides: SmallVec<[usize; 3]> =
        x.layout().strides().iter().map(|&s| usize::try_from(s)).collect::<Result<_, _>>().ok()?;
    let (rest, matrix) = strides.split_at(strides.len() - 2);
    let memory = x.memory::<T>().get(x.layout().offset()..)?;
    Some(gemm::BatchRef::new(
        memory,
        rest.first().copied().unwrap_or(0),
        (rows, cols),
        (matrix[0], matrix[1]),
    ))
}

/// A matrix as the kernel wants it, unless a stride is negative.
pub(crate) fn matrix<'a, T: Element>(x: View<'a>) -> Option<MatRef<'a, T>> {
    batch::<T>(x).map(|x| x.get(0))
}

/// Batch, rows and columns of a matrix or of a batch of matrices.
fn sizes(shape: &Shape) -> (usize, usize, usize) {
    match **shape {
        [rows, cols] => (1, rows, cols),
        [batch, rows, cols] => (batch, rows, cols),
        _ => unreachable!("`infer` lets two and three axes through"),
    }
}

fn misfit(left: &Shape, right: &Shape) -> OpError {
    let hint =
        "the last axis of the first must equal the second to last of the second (transpose one with `.t()`?)";
    OpError::Shapes { op: Matmul::NAME, left: left.clone(), right: right.clone(), hint }
}

impl Tensor {
    /// The matrix product, as `torch.matmul`: vectors are rows or columns, leading axes broadcast.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let a = Tensor::from([[1.0f32, 2.0], [3.0, 4.0]]);
    /// let v = Tensor::from([1.0f32, -1.0]);
    /// assert_eq!(a.matmul(&v).to_vec::<f32>(), [-1.0, -1.0]);
    /// ```
    #[track_caller]
    pub fn matmul(&self, other: &Tensor) -> Tensor {
        if self.rank() == 0 || other.rank() == 0 {
            let shape = if self.rank() == 0 { self.shape() } else { other.shape() };
            fail(OpError::Rank { op: Matmul::NAME, want: "at least 1 on both sides", shape: shape.clone() });
        }
        let dtype = self.dtype().promote(other.dtype());
        let row = |t: Tensor| if t.rank() == 1 { t.unsqueeze(0) } else { t };
        let column = |t: Tensor| if t.rank() == 1 { t.unsqueeze(-1) } else { t };
        let (a, b) = (row(self.to_dtype(dtype)), column(other.to_dtype(dtype)));
        let (m, k, n) = (a.size(-2), a.size(-1), b.size(-1));
        if k != b.size(-2) {
            fail(misfit(self.shape(), other.shape()));
        }
        let lead = |t: &Tensor| Shape::from(&t.shape()[..t.rank() - 2]);
        let mut shape = or_fail(lead(&a).broadcast(&lead(&b)).in_op(Matmul::NAME));
        let product = match (a.rank(), b.rank()) {
            (2, 2) => run(Matmul, &[&a, &b]),
            // A batch against one matrix is one tall product.
            (_, 2) => run(Matmul, &[&a.reshape([shape.numel() * m, k]), &b]),
            _ => {
                let flat = |t: &Tensor, rows: usize, cols: usize| {
                    let full: Shape = shape.iter().copied().chain([rows, cols]).collect();
                    t.broadcast_to(full).reshape([shape.numel(), rows, cols])
                };
                run(Matmul, &[&flat(&a, m, k), &flat(&b, k, n)])
            }
        };
        if self.rank() > 1 {
            shape.push(m);
        }
        if other.rank() > 1 {
            shape.push(n);
        }
        product.reshape(shape)
    }
}
