//! A right operand packed once and multiplied many times, on the calling thread.
//!
//! For kernels that are made of many small products with the same matrix: attention, recurrent cells. They
//! share out the work themselves, so nothing here forks, and the left operand is read where it lies.
//! Each element is the same chain of multiply-adds as in [`gemm_f32`](super::gemm_f32) up to a k of 384.

use std::ops::Range;

use super::pack::{Source, pack_panel};
use super::tile::{Tile, TileShape, kernels_f32};
use super::{MatRef, scratch};

/// Longest run over k before the sums go to memory: a panel then stays in L1.
const KC: usize = 384;

/// Elements that a `k × n` matrix takes when packed.
pub fn packed_len(k: usize, n: usize) -> usize {
    k * n.next_multiple_of(kernels_f32().nr)
}

/// Columns side by side in one panel: parts of a packed matrix begin at multiples of it.
pub fn panel_width() -> usize {
    kernels_f32().nr
}

/// Rows of a tile: a product with a multiple of so many rows wastes nothing.
pub fn tile_height() -> usize {
    kernels_f32().mr
}

/// A `k × n` matrix, or a part of one, in panels.
#[derive(Debug, Clone, Copy)]
pub struct Packed<'a> {
    /// From the first row of the first panel on.
    data: &'a [f32],
    panel_stride: usize,
    k: usize,
    n: usize,
}

impl<'a> Packed<'a> {
    /// Packs `b` into the first [`packed_len`] elements of `to`. Panics if it is too short.
    pub fn new(b: MatRef<'_, f32>, to: &'a mut [f32]) -> Self {
        let (k, n, nr) = (b.rows(), b.cols(), kernels_f32().nr);
        let to = &mut to[..packed_len(k, n)];
        for j in (0..n).step_by(nr) {
            let from = b.as_ptr().wrapping_add(j * b.col_stride());
            let source = Source { from, stride_i: b.col_stride(), stride_p: b.row_stride() };
            // SAFETY: `MatRef` holds all its elements, of which the panel's columns are `j .. j + nr` as far
            // as they exist; panel `j / nr` of `to` has `k * nr` elements by its length.
            unsafe { pack_panel(source, nr.min(n - j), nr, k, to[j * k..].as_mut_ptr()) };
        }
        Self { data: to, panel_stride: k * nr, k, n }
    }

    /// Packs a matrix with `cols` columns whose rows come in pieces, one every `step` rows, with zeros between them.
    /// Panics if a piece is longer than `step` or `to` is too short.
    pub fn of_pieces<'b>(
        pieces: impl ExactSizeIterator<Item = MatRef<'b, f32>>,
        step: usize,
        cols: usize,
        to: &'a mut [f32],
    ) -> Self {
        let (k, nr) = (pieces.len() * step, kernels_f32().nr);
        let to = &mut to[..packed_len(k, cols)];
        for (i, b) in pieces.enumerate() {
            assert!(b.rows() <= step && b.cols() == cols, "gemm: a piece of the wrong size");
            for j in (0..cols).step_by(nr) {
                let panel = &mut to[j * k + i * step * nr..][..step * nr];
                let from = b.as_ptr().wrapping_add(j * b.col_stride());
                let source = Source { from, stride_i: b.col_stride(), stride_p: b.row_stride() };
                // SAFETY: as in `new`, for the `b.rows() <= step` rows of the piece.
                unsafe { pack_panel(source, nr.min(cols - j), nr, b.rows(), panel.as_mut_ptr()) };
                panel[b.rows() * nr..].fill(0.0);
            }
        }
        Self { data: to, panel_stride: k * nr, k, n: cols }
    }

    pub(super) fn shape(&self) -> (usize, usize) {
        (self.k, self.n)
    }

    /// Where row `p` of the panel that begins with column `j` lies. Panics outside of the matrix.
    pub(super) fn at(&self, p: usize, j: usize) -> *const f32 {
        let nr = kernels_f32().nr;
        assert!(p < self.k && j < self.n && j.is_multiple_of(nr));
        self.data[j / nr * self.panel_stride + p * nr..].as_ptr()
    }

    /// Columns `cols`. Panics unless they exist and begin at a multiple of [`panel_width`].
    pub fn cols(self, cols: Range<usize>) -> Self {
        let nr = kernels_f32().nr;
        assert!(cols.start <= cols.end && cols.end <= self.n && cols.start.is_multiple_of(nr));
        let from = (cols.start / nr * self.panel_stride).min(self.data.len());
        Self { data: &self.data[from..], n: cols.len(), ..self }
    }

    /// Rows `rows`. Panics unless they exist.
    pub fn rows(self, rows: Range<usize>) -> Self {
        assert!(rows.start <= rows.end && rows.end <= self.k);
        let from = (rows.start * kernels_f32().nr).min(self.data.len());
        Self { data: &self.data[from..], k: rows.len(), ..self }
    }
}

/// `c (m×n) = a (m×k) · b (k×n)`, or `c += a · b` if `accumulate`, on this thread; row i of c begins at
/// `i * ldc`.
///
/// Panics if the shapes do not agree or c is too short.
pub fn gemm_packed(a: MatRef<'_, f32>, b: Packed<'_>, c: &mut [f32], ldc: usize, accumulate: bool) {
    let (m, n, kernels) = (a.rows(), b.n, kernels_f32());
    assert_eq!(a.cols(), b.k, "gemm: {m}×{} times {}×{n}", a.cols(), b.k);
    let n_c = span(m, n, ldc);
    assert!(n_c <= c.len(), "gemm: c has {} elements, needs {n_c}", c.len());
    if b.k == 0 && !accumulate {
        (0..m).for_each(|i| c[i * ldc..][..n].fill(0.0));
    }
    for p in (0..b.k).step_by(KC) {
        let k = KC.min(b.k - p);
        for j in (0..n).step_by(kernels.nr) {
            let cols = kernels.nr.min(n - j);
            for i in (0..m).step_by(kernels.mr) {
                let rows = kernels.mr.min(m - i);
                let (kernel, n_last) = kernels.tile(TileShape { rows, cols, a_packed: false });
                // SAFETY: rows `i .. i + rows` and columns `p .. p + k` are inside a; `j` begins a panel of b,
                // which has `k` rows from `p` on; the tile of c is inside by the assertion on its length.
                unsafe {
                    kernel(&Tile {
                        k,
                        a: a.as_ptr().add(i * a.row_stride() + p * a.col_stride()),
                        a_row_stride: a.row_stride(),
                        a_col_stride: a.col_stride(),
                        a_rows: std::ptr::null(),
                        b: b.data.as_ptr().add(j / kernels.nr * b.panel_stride + p * kernels.nr),
                        b_row_stride: kernels.nr,
                        c: c.as_mut_ptr().add(i * ldc + j),
                        c_row_stride: ldc,
                        n_last,
                        from: if accumulate || p > 0 {
                            c.as_ptr().add(i * ldc + j)
                        } else {
                            std::ptr::null()
                        },
                        from_row_stride: ldc,
                    });
                }
            }
        }
    }
}

/// Calls `f` with `len` numbers of scratch memory that this thread keeps, with any old contents.
///
/// A product that packs its operands must not run inside: it would find the memory taken and allocate.
pub fn with_scratch<R>(len: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    scratch::with(scratch::Use::Kernel, len, |at: *mut f32| {
        // SAFETY: the buffer has room for `len` elements, holds initialised bytes, of which every pattern is
        // an f32, and belongs to this call alone.
        f(unsafe { std::slice::from_raw_parts_mut(at, len) })
    })
}

/// How many elements C reaches over, or a panic if its rows overlap.
fn span(m: usize, n: usize, ldc: usize) -> usize {
    assert!(ldc >= n || m <= 1, "gemm: rows of c {ldc} apart overlap, need {n}");
    super::matrix::span(m, n, ldc, 1).expect("gemm: c is larger than memory")
}

#[cfg(test)]
mod tests {
    use super::{Packed, gemm_packed, packed_len, panel_width};
    use crate::gemm::{MatRef, gemm_f32};
    use crate::rows::testing::values;

    #[test]
    fn a_packed_product_has_the_bits_of_a_plain_one() {
        for (m, k, n) in
            [(1, 1, 1), (5, 7, 3), (6, 384, 16), (13, 65, 33), (48, 64, 100), (0, 3, 2), (3, 0, 2)]
        {
            let (a, b) = (values(m * k, 1), values(k * n, 2));
            let (a, b) = (MatRef::row_major(&a, m, k), MatRef::row_major(&b, k, n));
            let mut room = vec![f32::NAN; packed_len(k, n)];
            let packed = Packed::new(b, &mut room);
            for accumulate in [false, true] {
                let (mut got, mut want) = (values(m * (n + 2), 3), values(m * (n + 2), 3));
                gemm_packed(a, packed, &mut got, n + 2, accumulate);
                // One row or column would take the way of a matrix times a vector, which sums otherwise.
                if m == 1 || n == 1 {
                    continue;
                }
                gemm_f32(a, b, &mut want, n + 2, accumulate);
                assert_eq!(got, want, "{m}×{k}×{n}");
            }
        }
    }

    #[test]
    fn parts_and_transposed_left_operands_agree_with_f64() {
        let (m, k, n) = (9, 40, 3 * panel_width() + 1);
        let (a, b) = (values(m * k, 1), values(k * n, 2));
        let mut room = vec![0.0; packed_len(k, n)];
        let packed = Packed::new(MatRef::row_major(&b, k, n), &mut room);
        let (rows, cols) = (5..31, panel_width()..n);
        let mut c = vec![0.0; m * n];
        // a is stored (k, m).
        let part = MatRef::new(&a[rows.start * m..], m, rows.len(), 1, m);
        gemm_packed(part, packed.rows(rows.clone()).cols(cols.clone()), &mut c, n, false);
        for (i, j) in (0..m).flat_map(|i| cols.clone().map(move |j| (i, j))) {
            let want: f64 = rows.clone().map(|p| f64::from(a[p * m + i]) * f64::from(b[p * n + j])).sum();
            let got = f64::from(c[i * n + j - cols.start]);
            assert!((got - want).abs() < 1e-3, "({i}, {j}): {got} is not {want}");
        }
    }
}
