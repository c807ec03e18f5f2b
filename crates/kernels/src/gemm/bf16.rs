//! The product of bf16 matrices on tile registers, or by dot products of the same form, for CPUs that have them.
//!
//! A tile is 16 rows of 64 bytes. One instruction multiplies 16 rows of 32 numbers of A by 16 columns of 32 numbers
//! of B and adds to 16×16 sums in f32; its B lies as 16 rows of pairs of numbers that follow each other in a column.
//! Both operands are packed into such tiles, with zeros at the edges. A block of C is 2×2 tiles, so that each tile of an
//! operand is used twice, and is summed over all of k before it is rounded: the order of the sum depends on k alone.
//! Numbers too small for the normal form count as zero, as the instruction has it.

use std::ops::Range;

use half::bf16;

use super::bf16_pack::{pack_columns, pack_rows};
use super::blocked::{PARALLEL_MIN, run};
use super::scratch::{self, Use};
use super::{BatchMut, BatchRef, MatRef, SendPtr, batched};
use crate::stream::convert::cast;

/// Rows of a tile, pairs of numbers in a row of A's, and columns in a row of B's.
pub(super) const SIDE: usize = 16;
/// Numbers of k that one step takes.
pub(super) const DEPTH: usize = 2 * SIDE;
/// Numbers in a tile of an operand.
pub(super) const TILE: usize = SIDE * DEPTH;
/// Rows and columns of a block of C.
pub(super) const BLOCK: usize = 2 * SIDE;

/// Numbers of packed B that are used before the next: 8 MB, a fair part of L3.
const SLAB: usize = 1 << 22;
/// Numbers of packed A that a task takes, if k lets it: half a megabyte, a quarter of the L2 of such CPUs.
const TASK: usize = 1 << 18;

/// The tiles of one thread.
pub(super) trait Tiles {
    /// Makes them ready for blocks.
    fn take() -> Self;

    /// `sums`, 32 rows of 32, are the product of 32 packed rows and 32 packed columns of `32 * n_steps` numbers.
    ///
    /// # Safety
    /// `a` and `b` reach over `n_steps` steps of two tiles, and `sums` over 1024 numbers.
    unsafe fn block(&self, a: *const bf16, b: *const bf16, n_steps: usize, sums: *mut f32);
}

/// `c = a · b` for each of `n_batch` products, summed in f32 and rounded once; false, and nothing done, where the CPU
/// has no instructions for it.
///
/// Panics as [`gemm_batched_f32`](super::gemm_batched_f32) does.
pub fn gemm_batched_bf16(n_batch: usize, a: BatchRef<bf16>, b: BatchRef<bf16>, c: BatchMut<bf16>) -> bool {
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    if super::amx::available() {
        gemm_batched::<super::amx::Amx>(n_batch, a, b, c, SLAB);
        return true;
    }
    #[cfg(target_arch = "x86_64")]
    if super::dots::available() {
        gemm_batched::<super::dots::Dots>(n_batch, a, b, c, SLAB);
        return true;
    }
    let _ = (n_batch, a, b, c);
    false
}

fn gemm_batched<T: Tiles>(
    n_batch: usize,
    a: BatchRef<bf16>,
    b: BatchRef<bf16>,
    c: BatchMut<bf16>,
    slab: usize,
) {
    batched(n_batch, &a, &b, c, |idx, c, ldc, n_threads| {
        // SAFETY: `batched` hands out the part of C that belongs to this product.
        unsafe { gemm::<T>(a.get(idx), b.get(idx), c, ldc, slab, n_threads) };
    });
}

/// `c (m×n) = a (m×k) · b (k×n)`, rows of c `ldc` apart, with at most `slab` numbers of B packed at a time unless one block
/// has more, on up to `n_threads` threads.
///
/// # Safety
/// `c` is valid for writes of the m×n elements, by any thread, and is not accessed by others meanwhile.
unsafe fn gemm<T: Tiles>(
    a: MatRef<bf16>,
    b: MatRef<bf16>,
    c: SendPtr<bf16>,
    ldc: usize,
    slab: usize,
    n_threads: usize,
) {
    let (m, k, n) = (a.rows(), a.cols(), b.cols());
    let n_threads = if m * k * n < PARALLEL_MIN { 1 } else { n_threads };
    let n_steps = k.div_ceil(DEPTH);
    let packed_len = n_steps * 2 * TILE;
    let (row_blocks, col_blocks) = (m.div_ceil(BLOCK), n.div_ceil(BLOCK));
    let per_slab = (slab / packed_len.max(1)).clamp(1, col_blocks.max(1));
    scratch::with(Use::Shared, per_slab * packed_len, |slab: *mut bf16| {
        let slab = SendPtr::of(slab);
        for first in (0..col_blocks).step_by(per_slab) {
            let cols = first..col_blocks.min(first + per_slab);
            run(cols.len(), n_threads, &|j| {
                // SAFETY: the slab has room for `per_slab` packed blocks, and each is written by one task.
                unsafe { pack_columns(b, cols.start + j, slab.get().add(j * packed_len)) };
            });
            // A task has a few blocks of rows; where that makes too few tasks, columns are shared out too.
            let n_tasks = 4 * n_threads;
            let row_grain = (TASK / packed_len.max(1)).clamp(1, row_blocks.div_ceil(n_tasks).max(1));
            let n_row_tasks = row_blocks.div_ceil(row_grain);
            let col_grain = cols.len().div_ceil(n_tasks.div_ceil(n_row_tasks.max(1)).min(cols.len()));
            let n_col_tasks = cols.len().div_ceil(col_grain);
            run(n_row_tasks * n_col_tasks, n_threads, &|task| {
                let of = |len: usize, grain: usize, i: usize| i * grain..len.min((i + 1) * grain);
                let rows = of(row_blocks, row_grain, task / n_col_tasks);
                let own_cols = of(cols.len(), col_grain, task % n_col_tasks);
                scratch::with(Use::Task, rows.len() * packed_len, |packed: *mut bf16| {
                    let tiles = T::take();
                    let mut sums = [0.0; BLOCK * BLOCK];
                    for (i, row) in rows.clone().enumerate() {
                        // SAFETY: room for the packed blocks of all rows of the task.
                        unsafe { pack_rows(a, row, packed.add(i * packed_len)) };
                    }
                    for j in own_cols {
                        for (i, row) in rows.clone().enumerate() {
                            // SAFETY: both blocks are packed, with zeros where the matrix ends; other tasks write other
                            // blocks of C.
                            unsafe {
                                let (a, b) = (packed.add(i * packed_len), slab.get().add(j * packed_len));
                                tiles.block(a, b, n_steps, sums.as_mut_ptr());
                                round(&sums, part(row, m), part(cols.start + j, n), c, ldc);
                            }
                        }
                    }
                });
            });
        }
    });
}

/// What of the block exists.
pub(super) fn part(block: usize, end: usize) -> Range<usize> {
    block * BLOCK..end.min((block + 1) * BLOCK)
}

/// Writes the sums of a block to C.
///
/// # Safety
/// C is valid for writes of these rows and columns.
unsafe fn round(sums: &[f32], rows: Range<usize>, cols: Range<usize>, c: SendPtr<bf16>, ldc: usize) {
    for (row, sums) in rows.zip(sums.chunks_exact(BLOCK)) {
        // SAFETY: passed on to the caller.
        let to = unsafe { std::slice::from_raw_parts_mut(c.get().add(row * ldc + cols.start), cols.len()) };
        cast(&sums[..cols.len()], to);
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;

    use super::{BLOCK, DEPTH, SIDE, TILE, Tiles, gemm_batched};
    use crate::gemm::{BatchMut, BatchRef, MatRef, naive};
    use crate::rows::testing::{same_on_threads, values};

    /// What the instructions do, number by number.
    struct Emulated;

    impl Tiles for Emulated {
        fn take() -> Self {
            Self
        }

        unsafe fn block(&self, a: *const bf16, b: *const bf16, n_steps: usize, sums: *mut f32) {
            // SAFETY: the caller has these many.
            let (a, b, sums) = unsafe {
                let len = n_steps * 2 * TILE;
                (
                    std::slice::from_raw_parts(a, len),
                    std::slice::from_raw_parts(b, len),
                    std::slice::from_raw_parts_mut(sums, BLOCK * BLOCK),
                )
            };
            sums.fill(0.0);
            for step in 0..n_steps {
                for (row, col) in (0..BLOCK).flat_map(|row| (0..BLOCK).map(move |col| (row, col))) {
                    let (a_tile, b_tile) = (step * 2 + row / SIDE, step * 2 + col / SIDE);
                    for p in 0..DEPTH {
                        let x = a[a_tile * TILE + row % SIDE * DEPTH + p];
                        let y = b[b_tile * TILE + p / 2 * DEPTH + col % SIDE * 2 + p % 2];
                        sums[row * BLOCK + col] += x.to_f32() * y.to_f32();
                    }
                }
            }
        }
    }

    /// Multiplies by the tiles of this CPU, if it has them.
    fn tiles(n: usize, a: BatchRef<bf16>, b: BatchRef<bf16>, c: BatchMut<bf16>) {
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        if crate::gemm::amx::available() {
            return gemm_batched::<crate::gemm::amx::Amx>(n, a, b, c, FEW);
        }
        let _ = (n, a, b, c);
        println!("skipped: this CPU has no tiles of bf16");
    }

    /// Multiplies by the dot products of this CPU, if it has them.
    fn dots(n: usize, a: BatchRef<bf16>, b: BatchRef<bf16>, c: BatchMut<bf16>) {
        #[cfg(target_arch = "x86_64")]
        if crate::gemm::dots::available() {
            return gemm_batched::<crate::gemm::dots::Dots>(n, a, b, c, FEW);
        }
        let _ = (n, a, b, c);
        println!("skipped: this CPU has no dot products of bf16");
    }

    fn emulated(n: usize, a: BatchRef<bf16>, b: BatchRef<bf16>, c: BatchMut<bf16>) {
        gemm_batched::<Emulated>(n, a, b, c, FEW);
    }

    /// Numbers of a slab, such that products of some size take several.
    const FEW: usize = 4 * 2 * TILE;

    type Product = fn(usize, BatchRef<bf16>, BatchRef<bf16>, BatchMut<bf16>);

    /// A batch of two products with operands stored by rows or by columns, against f64.
    fn compare(product: Product, (m, k, n): (usize, usize, usize), (a_by_rows, b_by_rows): (bool, bool)) {
        let strides = |by_rows: bool, rows: usize, cols: usize| if by_rows { (cols, 1) } else { (1, rows) };
        // Numbers of few bits: each sum is exact in f32, and rounding once is the only error.
        let few_bits = |n: usize, seed: u32| -> Vec<bf16> {
            values(n, seed).iter().map(|x| bf16::from_f32((x * 4.0).round() / 4.0)).collect()
        };
        let (a, b) = (few_bits(2 * m * k, 1), few_bits(2 * k * n, 2));
        let (a_strides, b_strides) = (strides(a_by_rows, m, k), strides(b_by_rows, k, n));
        let ldc = n + 1;
        let untouched = bf16::from_f32(-77.0);
        let got = same_on_threads(|| {
            let mut c = vec![untouched; 2 * m * ldc];
            let c_ref = BatchMut { data: &mut c, batch_stride: m * ldc, ldc };
            let a = BatchRef::new(&a, m * k, (m, k), a_strides);
            product(2, a, BatchRef::new(&b, k * n, (k, n), b_strides), c_ref);
            c.iter().map(|x| x.to_f32()).collect()
        });
        if got.iter().all(|x| *x == untouched.to_f32()) && m * n > 0 {
            return; // Said by `tiles` or `dots`.
        }
        for idx in 0..2 {
            let wide = |x: &[bf16]| -> Vec<f64> { x.iter().map(|x| x.to_f64()).collect() };
            let (a, b) = (wide(&a[idx * m * k..]), wide(&b[idx * k * n..]));
            let mut want = vec![untouched.to_f64(); m * ldc];
            naive::gemm(
                MatRef::new(&a, m, k, a_strides.0, a_strides.1),
                MatRef::new(&b, k, n, b_strides.0, b_strides.1),
                &mut want,
                ldc,
                false,
            );
            for (i, want) in want.iter().enumerate() {
                let got = got[idx * m * ldc + i];
                assert_eq!(got, bf16::from_f64(*want).to_f32(), "{m}×{k}×{n}, product {idx}, element {i}");
            }
        }
    }

    #[test]
    fn every_size_and_order_has_the_bits_of_the_exact_product() {
        let sizes = [
            (1, 1, 1),
            (16, 32, 16),
            (32, 32, 32),
            (33, 31, 17),
            (5, 0, 3),
            (0, 4, 4),
            (3, 65, 100),
            (100, 40, 2),
            (130, 96, 70),
            (3, 96, 140),
        ];
        for product in [emulated as Product, tiles, dots] {
            for size in sizes {
                for orders in [(true, true), (true, false), (false, true), (false, false)] {
                    compare(product, size, orders);
                }
            }
        }
    }

    #[test]
    fn what_is_no_number_reaches_its_row_and_column_only() {
        let (m, k, n) = (20, 40, 20);
        for product in [emulated as Product, tiles, dots] {
            let (mut a, b) = (vec![bf16::ONE; m * k], vec![bf16::ONE; k * n]);
            (a[3 * k + 39], a[7 * k]) = (bf16::NAN, bf16::INFINITY);
            let mut c = vec![bf16::ZERO; m * n];
            let c_ref = BatchMut { data: &mut c, batch_stride: m * n, ldc: n };
            product(1, BatchRef::new(&a, 0, (m, k), (k, 1)), BatchRef::new(&b, 0, (k, n), (n, 1)), c_ref);
            if c.iter().all(|x| *x == bf16::ZERO) {
                continue; // Said by `tiles` or `dots`.
            }
            for (i, x) in c.iter().enumerate() {
                match i / n {
                    3 => assert!(x.is_nan()),
                    7 => assert_eq!(*x, bf16::INFINITY),
                    _ => assert_eq!(x.to_f32(), 40.0),
                }
            }
        }
    }
}
