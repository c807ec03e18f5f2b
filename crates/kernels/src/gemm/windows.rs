//! Products with windows of an image, which are read where they lie.
//!
//! Where windows are one step apart, the values that a tap sees from one output position to the next lie side
//! by side: the matrix of all windows is rows of the image, each from another place on. The kernels here take
//! those places and never build the matrix.
#![allow(clippy::needless_range_loop, reason = "indices name rows and vectors of several arrays at once")]

use std::ops::Range;

use super::pack::{Source, pack_panel};
use super::packed::Packed;
use super::tile::{Tile, TileShape, kernels_f32};
use super::vector::Vector;
use super::{Element, MatRef};

/// Longest run over k before the sums go to memory.
const KC: usize = 384;

/// Rows of the left operand that go over all columns together: with `KC`, a part of L2.
const MC: usize = 96;

/// A `rows × cols` matrix whose row p is `data[offsets[p]..][..cols]`.
#[derive(Debug, Clone, Copy)]
pub struct Windows<'a> {
    data: &'a [f32],
    offsets: &'a [usize],
    cols: usize,
}

impl<'a> Windows<'a> {
    /// Panics if a row leaves `data`.
    pub fn new(data: &'a [f32], offsets: &'a [usize], cols: usize) -> Self {
        let last = offsets.iter().copied().max().unwrap_or(0);
        assert!(
            last.checked_add(cols).is_some_and(|end| end <= data.len()),
            "gemm: a window leaves its image"
        );
        Self { data, offsets, cols }
    }

    /// Elements of a row.
    pub fn cols(&self) -> usize {
        self.cols
    }
}

/// A left operand in panels of rows.
#[derive(Debug, Clone, Copy)]
pub struct PackedRows<'a> {
    data: &'a [f32],
    rows: usize,
    k: usize,
}

impl<'a> PackedRows<'a> {
    /// Elements that an `m × k` matrix takes.
    pub fn len_of(m: usize, k: usize) -> usize {
        m.next_multiple_of(kernels_f32().mr) * k
    }

    /// Packs `a` into the first [`PackedRows::len_of`] elements of `to`. Panics if it is too short.
    pub fn new(a: MatRef<'_, f32>, to: &'a mut [f32]) -> Self {
        let (rows, k, mr) = (a.rows(), a.cols(), kernels_f32().mr);
        let to = &mut to[..Self::len_of(rows, k)];
        for i in (0..rows).step_by(mr) {
            let from = a.as_ptr().wrapping_add(i * a.row_stride());
            let source = Source { from, stride_i: a.row_stride(), stride_p: a.col_stride() };
            // SAFETY: `MatRef` holds all its elements; panel `i / mr` of `to` has `k * mr` by its length.
            unsafe { pack_panel(source, mr.min(rows - i), mr, k, to[i * k..].as_mut_ptr()) };
        }
        Self { data: to, rows, k }
    }

    /// What [`PackedRows::new`] has packed for the same sizes. Panics if there are too few elements.
    pub fn packed(data: &'a [f32], rows: usize, k: usize) -> Self {
        Self { data: &data[..Self::len_of(rows, k)], rows, k }
    }

    /// How many rows a panel has.
    pub fn panel() -> usize {
        kernels_f32().mr
    }

    /// Some of the rows. Panics if they do not begin with a panel.
    pub fn rows(self, rows: Range<usize>) -> Self {
        assert!(rows.start.is_multiple_of(Self::panel()) && rows.end <= self.rows, "gemm: not whole panels");
        Self { data: &self.data[rows.start * self.k..], rows: rows.len(), k: self.k }
    }
}

/// `c (m×n) = a (m×k) · b (k×n)` on this thread; row i of c begins at `i * ldc`.
///
/// Panics if the shapes do not agree or c is too short.
pub fn gemm_windows(a: PackedRows<'_>, b: Windows<'_>, c: &mut [f32], ldc: usize) {
    let (m, n, kernels) = (a.rows, b.cols, kernels_f32());
    assert_eq!(a.k, b.offsets.len(), "gemm: {m}×{} times {}×{n}", a.k, b.offsets.len());
    assert!(ldc >= n && (m == 0 || (m - 1) * ldc + n <= c.len()), "gemm: c is too short");
    for p in (0..a.k).step_by(KC) {
        let ps = p..a.k.min(p + KC);
        for row in (0..m).step_by(MC / kernels.mr * kernels.mr) {
            let rows = row..m.min(row + MC / kernels.mr * kernels.mr);
            // SAFETY: rows, columns and `ps` are inside the operands and c by the checks above.
            unsafe { block(a, b, c.as_mut_ptr(), ldc, rows, ps.clone()) };
        }
    }
}

/// Some rows of c, over some of k.
///
/// # Safety
/// `rows` and `ps` are inside `a`, and c reaches over its rows of `b.cols` elements.
unsafe fn block(
    a: PackedRows<'_>,
    b: Windows<'_>,
    c: *mut f32,
    ldc: usize,
    rows: Range<usize>,
    ps: Range<usize>,
) {
    let kernels = kernels_f32();
    for j in (0..b.cols).step_by(kernels.nr) {
        let cols = kernels.nr.min(b.cols - j);
        for i in rows.clone().step_by(kernels.mr) {
            let height = kernels.mr.min(rows.end - i);
            let (kernel, n_last) = kernels.window(height, cols);
            // SAFETY: panel `i / mr` begins at `i * k`, and its row `ps.start` `mr` elements further for each
            // p; `Windows` holds `cols` elements from each offset plus j on; c by the caller.
            unsafe {
                kernel(&WindowTile {
                    k: ps.len(),
                    a: a.data.as_ptr().add(i * a.k + ps.start * kernels.mr),
                    b: b.data.as_ptr().add(j),
                    offsets: b.offsets.as_ptr().add(ps.start),
                    c: c.add(i * ldc + j),
                    c_row_stride: ldc,
                    n_last,
                    add: ps.start > 0,
                });
            }
        }
    }
}

/// `c (m×n) += a (m×k) · b (k×n)` on this thread, the windows on the left; rows of c are dense.
///
/// Panics if the shapes do not agree or c is too short.
pub fn add_windows_by(a: Windows<'_>, b: Packed<'_>, c: &mut [f32]) {
    let ((m, k), (b_k, n), kernels) = ((a.offsets.len(), a.cols), b.shape(), kernels_f32());
    assert!(k == b_k && c.len() >= m * n, "gemm: {m}×{k} times {b_k}×{n} into {} elements", c.len());
    for p in (0..k).step_by(KC) {
        for j in (0..n).step_by(kernels.nr) {
            let cols = kernels.nr.min(n - j);
            for i in (0..m).step_by(kernels.mr) {
                let rows = kernels.mr.min(m - i);
                let (kernel, n_last) = kernels.tile(TileShape { rows, cols, a_packed: false });
                // SAFETY: rows `i .. i + rows` have offsets, and `Windows` holds all k elements from each;
                // `at` is inside the packed operand; the tile of c is inside by the assertion.
                unsafe {
                    kernel(&Tile {
                        k: KC.min(k - p),
                        a: a.data.as_ptr().add(p),
                        a_row_stride: 0,
                        a_col_stride: 1,
                        a_rows: a.offsets.as_ptr().add(i),
                        b: b.at(p, j),
                        b_row_stride: kernels.nr,
                        c: c.as_mut_ptr().add(i * n + j),
                        c_row_stride: n,
                        n_last,
                        from: c.as_ptr().add(i * n + j),
                        from_row_stride: n,
                    });
                }
            }
        }
    }
}

/// A tile with packed A whose rows of B lie at `b + offsets[p]`.
pub(super) struct WindowTile<T> {
    pub k: usize,
    pub a: *const T,
    pub b: *const T,
    pub offsets: *const usize,
    pub c: *mut T,
    pub c_row_stride: usize,
    pub n_last: usize,
    pub add: bool,
}

/// As [`tile_body`](super::tile) but for the places of the rows of B.
///
/// # Safety
/// The pointers reach over the tile that the kernel was picked for; the CPU has its instruction set.
#[inline(always)]
pub(super) unsafe fn window_body<
    V: Vector,
    const M: usize,
    const N: usize,
    const PARTIAL: bool,
    const MR: usize,
>(
    tile: &WindowTile<V::Elem>,
) {
    // SAFETY: passed on to the caller. `k` offsets exist, and so do k rows of the panel of A.
    unsafe {
        let mut sums = [[V::splat(<V::Elem as Element>::ZERO); N]; M];
        let mut a_rows = [tile.a; M];
        for row in 0..M {
            a_rows[row] = tile.a.wrapping_add(row);
        }
        let mut p = 0;
        while p + 4 <= tile.k {
            for u in 0..4 {
                let b = tile.b.add(*tile.offsets.add(p + u));
                super::tile::step::<V, M, N, PARTIAL>(&mut sums, &a_rows, (p + u) * MR, b, tile.n_last);
            }
            p += 4;
        }
        while p < tile.k {
            let b = tile.b.add(*tile.offsets.add(p));
            super::tile::step::<V, M, N, PARTIAL>(&mut sums, &a_rows, p * MR, b, tile.n_last);
            p += 1;
        }
        let c = (tile.c, tile.c_row_stride);
        let from = if tile.add { tile.c.cast_const() } else { std::ptr::null() };
        super::tile::finish::<V, M, N, PARTIAL>(&sums, c, (from, tile.c_row_stride), tile.n_last);
    }
}

#[cfg(test)]
mod tests {
    use super::{PackedRows, Windows, add_windows_by, gemm_windows};
    use crate::gemm::MatRef;
    use crate::gemm::packed::{Packed, packed_len};
    use crate::rows::testing::values;

    #[test]
    fn products_with_windows_on_either_side_agree_with_f64() {
        for (m, k, n) in [(1, 1, 1), (7, 9, 33), (64, 18, 50), (13, 400, 17), (100, 3, 5)] {
            let (data, other) = (values(3 * n + 7 * k.max(m), 1), values(k * m.max(n), 2));
            let offsets: Vec<usize> = (0..k).map(|p| p * 7 % (2 * n + 1)).collect();
            let a = MatRef::row_major(&other, m, k);
            let (mut room, mut c) = (vec![0.0; PackedRows::len_of(m, k)], vec![9.0; m * n]);
            gemm_windows(PackedRows::new(a, &mut room), Windows::new(&data, &offsets, n), &mut c, n);
            let check =
                |got: f32, want: f64| assert!((f64::from(got) - want).abs() < 1e-3, "{got} is not {want}");
            for (i, j) in (0..m).flat_map(|i| (0..n).map(move |j| (i, j))) {
                let terms = (0..k).map(|p| f64::from(a.at(i, p)) * f64::from(data[offsets[p] + j]));
                check(c[i * n + j], terms.sum());
            }
            // The same windows on the left: (k, n) · (n, m).
            let b = MatRef::row_major(&other, n, k.min(m));
            let (mut room, mut c) = (vec![0.0; packed_len(n, b.cols())], vec![1.0; k * b.cols()]);
            add_windows_by(Windows::new(&data, &offsets, n), Packed::new(b, &mut room), &mut c);
            for (i, j) in (0..k).flat_map(|i| (0..b.cols()).map(move |j| (i, j))) {
                let terms = (0..n).map(|p| f64::from(data[offsets[i] + p]) * f64::from(b.at(p, j)));
                check(c[i * b.cols() + j], 1.0 + terms.sum::<f64>());
            }
        }
    }
}
