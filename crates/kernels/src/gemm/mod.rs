//! Matrix product in f32 and f64, for any strides of the operands.
//!
//! C is row-major and dense in its rows; A and B are [`MatRef`]s. Each element of C is a sum over k in
//! an order that depends on the shapes alone: the number of threads never changes a bit of the result.
//! NaN and infinities propagate as IEEE 754 says; no zero is skipped.

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
mod amx;
#[cfg_attr(
    not(all(target_arch = "x86_64", target_os = "linux")),
    allow(dead_code, reason = "tested everywhere, used where there are tiles")
)]
mod bf16;
#[cfg_attr(
    not(all(target_arch = "x86_64", target_os = "linux")),
    allow(dead_code, reason = "tested everywhere, used where there are tiles")
)]
mod bf16_pack;
mod blocked;
#[cfg(target_arch = "x86_64")]
mod dots;
mod gemv;
mod matrix;
pub mod naive;
mod pack;
pub mod packed;
mod scratch;
mod tile;
mod vector;
pub mod windows;

#[cfg(test)]
mod tests;

use std::ops::{Add, Mul, Range};

pub use bf16::gemm_batched_bf16;
pub use matrix::MatRef;

use crate::threads::{parallel, piece, split, threads};

/// Multiply-adds of one product from which a batch is not shared out product by product, unless there
/// are many products.
const LARGE: usize = 1 << 21;

/// `c (m×n) = a (m×k) · b (k×n)`, or `c += a · b` if `accumulate`; row i of c begins at `i * ldc`.
///
/// Panics if the shapes do not agree or c is too short.
///
/// ```
/// use thalweg_kernels::gemm::{MatRef, gemm_f32};
/// let (a, b) = ([1.0, 2.0, 3.0, 4.0], [5.0, 6.0]);
/// let mut c = [0.0; 2];
/// gemm_f32(MatRef::row_major(&a, 2, 2), MatRef::row_major(&b, 2, 1), &mut c, 1, false);
/// assert_eq!(c, [17.0, 39.0]);
/// ```
pub fn gemm_f32(a: MatRef<f32>, b: MatRef<f32>, c: &mut [f32], ldc: usize, accumulate: bool) {
    gemm(a, b, c, ldc, Start::new(accumulate), None);
}

/// [`gemm_f32`] in f64.
pub fn gemm_f64(a: MatRef<f64>, b: MatRef<f64>, c: &mut [f64], ldc: usize, accumulate: bool) {
    gemm(a, b, c, ldc, Start::new(accumulate), None);
}

/// What a product is added to.
#[derive(Debug, Clone, Copy)]
pub enum Start<'a, T> {
    /// Nothing.
    Zero,
    /// What C holds.
    Result,
    /// The same row for every row of C: a bias.
    Row(&'a [T]),
}

impl<T> Start<'_, T> {
    fn new(accumulate: bool) -> Self {
        if accumulate { Start::Result } else { Start::Zero }
    }
}

/// Elements of a result: straight pieces of one length, at one distance from each other.
#[derive(Debug, Clone)]
pub struct Pieces {
    /// The first piece.
    pub first: Range<usize>,
    /// How many pieces.
    pub n: usize,
    /// Elements from the beginning of one to that of the next.
    pub stride: usize,
}

impl Pieces {
    /// A single piece.
    pub fn one(piece: Range<usize>) -> Self {
        Self { first: piece, n: 1, stride: 0 }
    }

    /// Each piece.
    pub fn iter(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        (0..self.n).map(|i| self.first.start + i * self.stride..self.first.end + i * self.stride)
    }

    /// The same ones further on.
    fn behind(&self, skipped: usize) -> Self {
        Self { first: skipped + self.first.start..skipped + self.first.end, ..self.clone() }
    }
}

/// Called with pieces of C, from the threads that made them, when they are final; and with the address of C, for
/// reading and writing these elements and no others.
pub type OnReady<'a> = dyn Fn(Pieces, *mut u8) + Sync + 'a;

/// What is to be done with pieces of a result, if anything.
pub type Ready<'a> = Option<&'a OnReady<'a>>;

/// Says that a part of a result that begins at `start` is final.
pub(crate) fn tell(ready: Ready, start: usize, part: &mut [f32]) {
    if let Some(ready) = ready {
        let first = part.as_mut_ptr().wrapping_sub(start);
        ready(Pieces::one(start..start + part.len()), first.cast());
    }
}

/// [`gemm_f32`] from any start. Each element of C is in one of the pieces that `ready` is called with, or in a gap
/// between rows, and is final and still in a cache then.
///
/// Panics if the shapes do not agree, or c or the start is too short.
pub fn gemm_then_f32(
    a: MatRef<f32>,
    b: MatRef<f32>,
    c: &mut [f32],
    ldc: usize,
    start: Start<f32>,
    ready: Ready,
) {
    gemm(a, b, c, ldc, start, ready);
}

/// [`gemm_then_f32`] in f64.
pub fn gemm_then_f64(
    a: MatRef<f64>,
    b: MatRef<f64>,
    c: &mut [f64],
    ldc: usize,
    start: Start<f64>,
    ready: Ready,
) {
    gemm(a, b, c, ldc, start, ready);
}

/// A row of equal matrices in one slice: matrix `i` begins at `i * batch_stride`, 0 for one shared matrix.
#[derive(Debug, Clone, Copy)]
pub struct BatchRef<'a, T> {
    data: &'a [T],
    batch_stride: usize,
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a, T: Copy> BatchRef<'a, T> {
    /// `data` from the first element of matrix 0. Bounds are checked when a matrix is taken out.
    pub fn new(
        data: &'a [T],
        batch_stride: usize,
        (rows, cols): (usize, usize),
        (row_stride, col_stride): (usize, usize),
    ) -> Self {
        Self { data, batch_stride, rows, cols, row_stride, col_stride }
    }

    /// Matrix `idx`. Panics if it lies outside the data.
    pub fn get(&self, idx: usize) -> MatRef<'a, T> {
        let from = if self.rows == 0 || self.cols == 0 { 0 } else { idx * self.batch_stride };
        MatRef::new(&self.data[from..], self.rows, self.cols, self.row_stride, self.col_stride)
    }
}

/// The outputs of a batched product: row `r` of product `i` begins at `i * batch_stride + r * ldc`.
#[derive(Debug)]
pub struct BatchMut<'a, T> {
    /// All outputs.
    pub data: &'a mut [T],
    /// Elements from one output to the next; outputs may not overlap.
    pub batch_stride: usize,
    /// Elements from one row to the next.
    pub ldc: usize,
}

/// [`gemm_f32`] for each of `n_batch` products. Bit for bit the same as one call for each.
pub fn gemm_batched_f32(
    n_batch: usize,
    a: BatchRef<f32>,
    b: BatchRef<f32>,
    c: BatchMut<f32>,
    accumulate: bool,
) {
    gemm_batched(n_batch, a, b, c, accumulate, None);
}

/// [`gemm_batched_f32`] in f64.
pub fn gemm_batched_f64(
    n_batch: usize,
    a: BatchRef<f64>,
    b: BatchRef<f64>,
    c: BatchMut<f64>,
    accumulate: bool,
) {
    gemm_batched(n_batch, a, b, c, accumulate, None);
}

/// [`gemm_batched_f32`], not added to anything, with `ready` as in [`gemm_then_f32`].
pub fn gemm_batched_then_f32(
    n_batch: usize,
    a: BatchRef<f32>,
    b: BatchRef<f32>,
    c: BatchMut<f32>,
    ready: Ready,
) {
    gemm_batched(n_batch, a, b, c, false, ready);
}

/// The numbers that can be multiplied: f32 and f64.
trait Element: Copy + Send + Sync + Add<Output = Self> + Mul<Output = Self> + 'static {
    const ZERO: Self;
    const ONE: Self;
    fn kernels() -> &'static tile::Kernels<Self>;

    /// See [`pack::transpose_4x4`].
    ///
    /// # Safety
    /// Both pointers reach over their 4×4 block.
    #[inline(always)]
    unsafe fn transpose_4x4(from: *const Self, from_stride: usize, to: *mut Self, to_stride: usize) {
        // SAFETY: passed on to the caller.
        unsafe { pack::transpose_4x4(from, from_stride, to, to_stride) }
    }
}

impl Element for f32 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    fn kernels() -> &'static tile::Kernels<Self> {
        tile::kernels_f32()
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn transpose_4x4(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
        // SAFETY: passed on to the caller.
        unsafe { pack::transpose_4x4_sse(from, from_stride, to, to_stride) }
    }
}

impl Element for f64 {
    const ZERO: Self = 0.0;
    const ONE: Self = 1.0;
    fn kernels() -> &'static tile::Kernels<Self> {
        tile::kernels_f64()
    }
}

/// A pointer that tasks on other threads may use; whoever makes one says why that is sound.
#[derive(Clone, Copy)]
struct SendPtr<T>(*mut T);

// SAFETY: only a number. Every use is an unsafe block that proves its own accesses.
unsafe impl<T> Send for SendPtr<T> {}
// SAFETY: as for `Send`.
unsafe impl<T> Sync for SendPtr<T> {}

impl<T> SendPtr<T> {
    fn of(ptr: *const T) -> Self {
        Self(ptr.cast_mut())
    }

    /// A method, so that closures capture the wrapper and not its field.
    fn get(self) -> *mut T {
        self.0
    }
}

fn gemm<T: Element>(
    a: MatRef<T>,
    b: MatRef<T>,
    c: &mut [T],
    ldc: usize,
    start: Start<'_, T>,
    ready: Ready<'_>,
) {
    let n_c = check(&a, &b, ldc);
    if let Start::Row(row) = start {
        assert!(row.len() >= b.cols(), "gemm: a start of {} elements, needs {}", row.len(), b.cols());
    }
    assert!(n_c <= c.len(), "gemm: c has {} elements, needs {n_c}", c.len());
    // SAFETY: `check` counted the elements, and `c` is borrowed mutably for the call.
    unsafe { gemm_into(a, b, SendPtr(c.as_mut_ptr()), ldc, start, ready, threads()) };
}

fn gemm_batched<T: Element>(
    n_batch: usize,
    a: BatchRef<T>,
    b: BatchRef<T>,
    c: BatchMut<T>,
    accumulate: bool,
    ready: Ready<'_>,
) {
    let batch_stride = c.batch_stride;
    batched(n_batch, &a, &b, c, |idx, c, ldc, n_threads| {
        let shifted = |pieces: Pieces, at: *mut u8| {
            if let Some(ready) = ready {
                let skipped = idx * batch_stride;
                ready(pieces.behind(skipped), at.wrapping_sub(skipped * size_of::<T>()));
            }
        };
        let ready: Ready<'_> = if ready.is_some() { Some(&shifted) } else { None };
        // SAFETY: `batched` hands out the part of C that belongs to this product.
        unsafe { gemm_into(a.get(idx), b.get(idx), c, ldc, Start::new(accumulate), ready, n_threads) };
    });
}

/// Shares out the products of a batch: calls `one` with each product's index, its C, the stride of its rows and the number
/// of threads that it may use. The rows of its C, `a.rows` of `b.cols` elements, are for `one` alone to read and write, on
/// any thread, until it returns.
///
/// Panics if the shapes do not agree, C is too short, or its parts overlap.
fn batched<T: Copy + Send + Sync>(
    n_batch: usize,
    a: &BatchRef<T>,
    b: &BatchRef<T>,
    c: BatchMut<T>,
    one: impl Fn(usize, SendPtr<T>, usize, usize) + Sync,
) {
    if n_batch == 0 {
        return;
    }
    let BatchMut { data, batch_stride, ldc } = c;
    // The last matrices reach furthest, so all others are inside too.
    let n_c = check(&a.get(n_batch - 1), &b.get(n_batch - 1), ldc);
    assert!(n_batch == 1 || n_c <= batch_stride, "gemm: outputs {batch_stride} apart overlap, need {n_c}");
    let n_all = (n_batch - 1).checked_mul(batch_stride).and_then(|n| n.checked_add(n_c));
    assert!(n_all.is_some_and(|n| n <= data.len()), "gemm: c has {} elements, too few", data.len());
    let c = SendPtr(data.as_mut_ptr());
    let one = |idx: usize, n_threads: usize| {
        // Product `idx` has `n_c` elements from `idx * batch_stride` on: inside `data`, which is borrowed mutably for the
        // call, and apart from the others.
        one(idx, SendPtr(c.get().wrapping_add(idx * batch_stride)), ldc, n_threads);
    };
    let size = a.rows * a.cols * b.cols;
    let by_product = n_batch > 1 && (size < LARGE || n_batch >= 4 * threads());
    if !by_product {
        return (0..n_batch).for_each(|idx| one(idx, threads()));
    }
    let n_tasks = if size * n_batch >= blocked::PARALLEL_MIN { 16 * threads() } else { 1 };
    let grain = n_batch.div_ceil(n_tasks);
    let tasks = |task: usize| {
        for idx in piece(n_batch, grain, task) {
            one(idx, 1);
        }
    };
    if n_tasks == 1 { tasks(0) } else { parallel(split(n_batch, grain), &tasks) }
}

/// Panics unless the shapes agree; returns how many elements C reaches over.
fn check<T: Copy>(a: &MatRef<T>, b: &MatRef<T>, ldc: usize) -> usize {
    let (m, n) = (a.rows(), b.cols());
    assert_eq!(a.cols(), b.rows(), "gemm: {m}×{} times {}×{n}", a.cols(), b.rows());
    assert!(ldc >= n || m <= 1, "gemm: rows of c {ldc} apart overlap, need {n}");
    matrix::span(m, n, ldc, 1).expect("gemm: c is larger than memory")
}

/// # Safety
/// `c` is valid for reads and writes of the elements that [`check`] counts, by any thread, and is not
/// accessed by others meanwhile.
unsafe fn gemm_into<T: Element>(
    a: MatRef<T>,
    b: MatRef<T>,
    c: SendPtr<T>,
    ldc: usize,
    start: Start<'_, T>,
    ready: Ready<'_>,
    n_threads: usize,
) {
    let (m, k, n) = (a.rows(), a.cols(), b.cols());
    if m == 0 || n == 0 {
        return;
    }
    // SAFETY: passed on to the caller. A row of C is dense; a column of C has stride `ldc`.
    unsafe {
        if k > 0 && m > 1 && n > 1 {
            return blocked::gemm(a, b, c, ldc, start, ready, n_threads);
        }
        // Nothing to multiply, or a vector: C begins with the start, which costs little.
        for i in 0..m {
            let row = std::slice::from_raw_parts_mut(c.get().add(i * ldc), n);
            match start {
                Start::Zero if k == 0 => row.fill(T::ZERO),
                Start::Row(bias) => row.copy_from_slice(&bias[..n]),
                _ => {}
            }
        }
        let add = !matches!(start, Start::Zero);
        let done = match (m, n) {
            _ if k == 0 => Some(()),
            (1, _) => gemv::gemv(b.t(), a.t(), c, 1, add),
            _ => gemv::gemv(a, b, c, ldc, add),
        };
        if done.is_none() {
            let start = if add { Start::Result } else { Start::Zero };
            return blocked::gemm(a, b, c, ldc, start, ready, n_threads);
        }
        if let Some(ready) = ready {
            ready(Pieces { first: 0..n, n: m, stride: ldc }, c.get().cast());
        }
    }
}
