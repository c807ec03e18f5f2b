//! Packing of bf16 matrices into tiles; what a tile is stands in [`super::bf16`].
//!
//! Two steps serve all orders in memory: two rows become pairs of numbers, and 16×16 pairs are transposed. Blocks at the edge
//! of a matrix, other strides, and CPUs without AVX-512 take numbers one by one.

use half::bf16;

use super::MatRef;
use super::bf16::{BLOCK, DEPTH, SIDE, TILE, part};

/// Packs a block of rows: for each step of k two tiles, each of 16 rows of 32 numbers.
///
/// # Safety
/// `to` has room for the steps of all of k.
pub(super) unsafe fn pack_rows(a: MatRef<bf16>, block: usize, to: *mut bf16) {
    let (k, rows) = (a.cols(), part(block, a.rows()));
    for step in 0..k.div_ceil(DEPTH) {
        let ps = step * DEPTH..k.min((step + 1) * DEPTH);
        // SAFETY: the two tiles of the step.
        let to = unsafe { std::slice::from_raw_parts_mut(to.add(step * 2 * TILE), 2 * TILE) };
        #[cfg(target_arch = "x86_64")]
        if rows.len() == BLOCK && ps.len() == DEPTH && vectors::available() {
            // SAFETY: this CPU has the instructions; the 32×32 numbers are inside A.
            if unsafe { vectors::pack_rows(a, rows.start, ps.start, to) } {
                continue;
            }
        }
        if rows.len() < BLOCK || ps.len() < DEPTH {
            to.fill(bf16::ZERO);
        }
        for (row, to) in rows.clone().zip(to.chunks_exact_mut(DEPTH)) {
            to.iter_mut().zip(ps.clone()).for_each(|(to, p)| *to = a.at(row, p));
        }
    }
}

/// Packs a block of columns: for each step of k two tiles, each of 16 rows of 16 pairs of numbers that follow each other in
/// a column.
///
/// # Safety
/// As for [`pack_rows`].
pub(super) unsafe fn pack_columns(b: MatRef<bf16>, block: usize, to: *mut bf16) {
    let (k, cols) = (b.rows(), part(block, b.cols()));
    for step in 0..k.div_ceil(DEPTH) {
        let ps = step * DEPTH..k.min((step + 1) * DEPTH);
        // SAFETY: the two tiles of the step.
        let to = unsafe { std::slice::from_raw_parts_mut(to.add(step * 2 * TILE), 2 * TILE) };
        #[cfg(target_arch = "x86_64")]
        if cols.len() == BLOCK && ps.len() == DEPTH && vectors::available() {
            // SAFETY: this CPU has the instructions; the 32×32 numbers are inside B.
            if unsafe { vectors::pack_columns(b, ps.start, cols.start, to) } {
                continue;
            }
        }
        if cols.len() < BLOCK || ps.len() < DEPTH {
            to.fill(bf16::ZERO);
        }
        for (i, p) in ps.enumerate() {
            for (j, col) in cols.clone().enumerate() {
                to[j / SIDE * TILE + i / 2 * DEPTH + j % SIDE * 2 + i % 2] = b.at(p, col);
            }
        }
    }
}

/// Whole blocks by AVX-512.
#[cfg(target_arch = "x86_64")]
mod vectors {
    use std::arch::x86_64::{
        __m512i, _mm256_loadu_si256, _mm512_cvtepu16_epi32, _mm512_loadu_si512, _mm512_or_si512,
        _mm512_setzero_si512, _mm512_shuffle_i32x4, _mm512_slli_epi32, _mm512_storeu_si512,
        _mm512_unpackhi_epi32, _mm512_unpackhi_epi64, _mm512_unpacklo_epi32, _mm512_unpacklo_epi64,
    };

    use half::bf16;

    use super::{BLOCK, DEPTH, SIDE, TILE};
    use crate::gemm::MatRef;
    use crate::simd::{Isa, isa};

    pub(super) fn available() -> bool {
        isa() == Isa::Avx512
    }

    /// Packs 32 rows from `row` on, 32 numbers each from `p` on; false, and nothing done, if neither is dense.
    ///
    /// # Safety
    /// This CPU has AVX-512; the numbers are inside A, and `to` has two tiles.
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn pack_rows(a: MatRef<bf16>, row: usize, p: usize, to: &mut [bf16]) -> bool {
        let (row_stride, col_stride) = (a.row_stride(), a.col_stride());
        // SAFETY: passed on to the caller: 32 rows of 32 dense numbers, or 32 columns of 32.
        unsafe {
            let from = a.as_ptr().add(row * row_stride + p * col_stride);
            if col_stride == 1 {
                for i in 0..BLOCK {
                    store(load(from.add(i * row_stride)), &mut to[i * DEPTH..]);
                }
                return true;
            }
            if row_stride != 1 {
                return false;
            }
            for (half, to) in to.chunks_exact_mut(TILE).enumerate() {
                let columns = from.add(half * SIDE);
                let pair =
                    |i: usize| pairs(columns.add(2 * i * col_stride), columns.add((2 * i + 1) * col_stride));
                transposed(collect(pair), to);
            }
            true
        }
    }

    /// Packs 32 columns from `col` on, 32 numbers each from `p` on; false, and nothing done, if neither is dense.
    ///
    /// # Safety
    /// As for [`pack_rows`].
    #[target_feature(enable = "avx512f,avx512bw")]
    pub(super) unsafe fn pack_columns(b: MatRef<bf16>, p: usize, col: usize, to: &mut [bf16]) -> bool {
        let (row_stride, col_stride) = (b.row_stride(), b.col_stride());
        // SAFETY: passed on to the caller: 32 rows of 32 dense numbers, or 32 columns of 32.
        unsafe {
            let from = b.as_ptr().add(p * row_stride + col * col_stride);
            for (half, to) in to.chunks_exact_mut(TILE).enumerate() {
                let from = from.add(half * SIDE * col_stride);
                if col_stride == 1 {
                    for i in 0..SIDE {
                        let pairs = pairs(from.add(2 * i * row_stride), from.add((2 * i + 1) * row_stride));
                        store(pairs, &mut to[i * DEPTH..]);
                    }
                } else if row_stride == 1 {
                    transposed(collect(|i| load(from.add(i * col_stride))), to);
                } else {
                    return false;
                }
            }
            true
        }
    }

    /// # Safety
    /// 32 numbers at `at`.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn load(at: *const bf16) -> __m512i {
        // SAFETY: passed on to the caller.
        unsafe { _mm512_loadu_si512(at.cast()) }
    }

    #[inline]
    #[target_feature(enable = "avx512f")]
    fn store(row: __m512i, to: &mut [bf16]) {
        // SAFETY: the slice has the 32 numbers.
        unsafe { _mm512_storeu_si512(to[..DEPTH].as_mut_ptr().cast(), row) };
    }

    /// The 16 numbers of two rows as pairs.
    ///
    /// # Safety
    /// 16 numbers at each.
    #[inline]
    #[target_feature(enable = "avx512f")]
    unsafe fn pairs(first: *const bf16, second: *const bf16) -> __m512i {
        // SAFETY: passed on to the caller.
        let [first, second] = [first, second].map(|at| unsafe { _mm256_loadu_si256(at.cast()) });
        _mm512_or_si512(_mm512_cvtepu16_epi32(first), _mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(second)))
    }

    /// Sixteen rows. A loop, since a closure under `array::from_fn` would be compiled without the instructions.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn collect(row: impl Fn(usize) -> __m512i) -> [__m512i; SIDE] {
        let mut rows = [_mm512_setzero_si512(); SIDE];
        for (i, to) in rows.iter_mut().enumerate() {
            *to = row(i);
        }
        rows
    }

    /// Writes 16 rows of 16 pairs with rows and columns exchanged.
    #[inline]
    #[target_feature(enable = "avx512f")]
    fn transposed(mut r: [__m512i; SIDE], to: &mut [bf16]) {
        let mut t = r;
        for i in 0..8 {
            t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
            t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
        }
        // Quarter q of r[4 i + j] is then column 4 q + j of rows 4 i to 4 i + 3.
        for i in (0..SIDE).step_by(4) {
            r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
            r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
            r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
            r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
        }
        // Even quarters of the upper and of the lower rows, and odd ones.
        for i in [0, 8] {
            for j in i..i + 4 {
                t[j] = _mm512_shuffle_i32x4::<0x88>(r[j], r[j + 4]);
                t[j + 4] = _mm512_shuffle_i32x4::<0xdd>(r[j], r[j + 4]);
            }
        }
        for j in 0..4 {
            for (column, quarter) in [(j, j), (j + 4, j + 4)] {
                store(_mm512_shuffle_i32x4::<0x88>(t[quarter], t[quarter + 8]), &mut to[column * DEPTH..]);
                store(
                    _mm512_shuffle_i32x4::<0xdd>(t[quarter], t[quarter + 8]),
                    &mut to[(column + 8) * DEPTH..],
                );
            }
        }
    }
}
