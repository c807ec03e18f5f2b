//! The innermost kernel, a tile of C held in registers, and the table of all kernels of an instruction set.
//!
//! Every kernel is written once over [`Vector`] and instantiated for each instruction set. In a tile
//! each element of C is one chain of multiply-adds over k, in order, whatever the size of the tile, so
//! results do not depend on how a product is cut into tiles.
#![allow(clippy::needless_range_loop, reason = "indices name rows and vectors of several arrays at once")]

use std::mem::MaybeUninit;

use super::gemv::{Axpy, Dots};
use super::vector::{Plain, Vector};
use super::windows::WindowTile;
use crate::simd::{Isa, isa};
use crate::stream::prefetch;

/// Steps of k in one round of the tile's loop.
const UNROLL: usize = 4;

/// `C (M×N) = A (M×k) · B (k×N)`, or `+=`.
pub(super) struct Tile<T> {
    pub k: usize,
    /// Element (i, p) is at `i * a_row_stride + p * a_col_stride`. Packed A ignores the strides.
    pub a: *const T,
    pub a_row_stride: usize,
    pub a_col_stride: usize,
    /// Where each row of A begins, counted from `a`, in place of `a_row_stride`; null if there is no such list.
    pub a_rows: *const usize,
    /// Element (p, j) is at `p * b_row_stride + j`.
    pub b: *const T,
    pub b_row_stride: usize,
    /// Element (i, j) is at `i * c_row_stride + j`.
    pub c: *mut T,
    pub c_row_stride: usize,
    /// Columns in the last vector, for the kernels that end in a part of a vector.
    pub n_last: usize,
    /// What is added to the product, if anything: element (i, j) is at `i * from_row_stride + j`. C itself to add to
    /// it, a bias with a stride of 0; null for the product alone.
    pub from: *const T,
    pub from_row_stride: usize,
}

/// Safety: the pointers reach over the tile that the kernel was picked for; the CPU has its
/// instruction set.
pub(super) type TileFn<T> = unsafe fn(&Tile<T>);
type WindowFn<T> = unsafe fn(&WindowTile<T>);

/// Which tile kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TileShape {
    /// 1 to [`Kernels::mr`].
    pub rows: usize,
    /// 1 to [`Kernels::nr`].
    pub cols: usize,
    /// A is packed: element (i, p) is at `p * mr + i`.
    pub a_packed: bool,
}

/// The kernels of one instruction set.
pub(super) struct Kernels<T: 'static> {
    /// Rows of a full tile and of a packed panel of A.
    pub mr: usize,
    /// Columns of a full tile and of a packed panel of B.
    pub nr: usize,
    lanes: usize,
    pick: fn(rows: usize, vectors: usize, partial: bool, a_packed: bool) -> TileFn<T>,
    pick_window: fn(rows: usize, vectors: usize, partial: bool) -> WindowFn<T>,
    /// Dot products of `n_rows` rows with x, see [`Dots`].
    pub dots: unsafe fn(&Dots<T>),
    /// Sum of scaled rows, see [`Axpy`].
    pub axpy: unsafe fn(&Axpy<T>),
}

impl<T> Kernels<T> {
    /// The kernel for a tile, and the number of columns in its last vector.
    pub fn tile(&self, shape: TileShape) -> (TileFn<T>, usize) {
        let vectors = shape.cols.div_ceil(self.lanes);
        let n_last = shape.cols - (vectors - 1) * self.lanes;
        ((self.pick)(shape.rows, vectors, n_last < self.lanes, shape.a_packed), n_last)
    }
}

impl<T> Kernels<T> {
    /// The kernel for a tile over windows, and the number of columns in its last vector.
    pub fn window(&self, rows: usize, cols: usize) -> (unsafe fn(&WindowTile<T>), usize) {
        let vectors = cols.div_ceil(self.lanes);
        let n_last = cols - (vectors - 1) * self.lanes;
        ((self.pick_window)(rows, vectors, n_last < self.lanes), n_last)
    }
}

/// The kernels for this machine in f32.
pub(super) fn kernels_f32() -> &'static Kernels<f32> {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &avx512_f32::KERNELS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2_f32::KERNELS,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => &neon_f32::KERNELS,
        _ => &plain_f32::KERNELS,
    }
}

/// The kernels for this machine in f64.
pub(super) fn kernels_f64() -> &'static Kernels<f64> {
    match isa() {
        #[cfg(target_arch = "x86_64")]
        Isa::Avx512 => &avx512_f64::KERNELS,
        #[cfg(target_arch = "x86_64")]
        Isa::Avx2 => &avx2_f64::KERNELS,
        #[cfg(target_arch = "aarch64")]
        Isa::Neon => &neon_f64::KERNELS,
        _ => &plain_f64::KERNELS,
    }
}

/// A tile of `M` rows and `N` vectors. `PARTIAL`: only `n_last` columns of the last vector exist.
/// `MR`: the row count of the packed panels of A, or 0 if A is strided.
///
/// # Safety
/// As for [`TileFn`].
#[inline(always)]
unsafe fn tile_body<V: Vector, const M: usize, const N: usize, const PARTIAL: bool, const MR: usize>(
    tile: &Tile<V::Elem>,
) {
    let (a_row_stride, a_col_stride) = if MR == 0 { (tile.a_row_stride, tile.a_col_stride) } else { (1, MR) };
    // SAFETY: the caller's pointers reach over M rows of A and C, k rows of B, and N vectors of
    // columns of which the last is cut to `n_last` by the masked forms. Pointers advance only as far
    // as the next row that is read, plus one step past the end, by wrapping arithmetic.
    unsafe {
        let mut sums = [[V::splat(<V::Elem as super::Element>::ZERO); N]; M];
        // One base for each row: a chain of additions from row to row would cost more than the products.
        let mut a_rows = [tile.a; M];
        for row in 0..M {
            let listed = MR == 0 && !tile.a_rows.is_null();
            a_rows[row] =
                tile.a.wrapping_add(if listed { *tile.a_rows.add(row) } else { row * a_row_stride });
        }
        if !tile.from.is_null() {
            for row in 0..M {
                // By the time the sums are done C has come from L2 or L3. A row of a tile begins anywhere
                // in a line, so it lies in one more line than it is long.
                let c = tile.from.wrapping_add(row * tile.from_row_stride);
                prefetch(c);
                prefetch(c.wrapping_add(N * V::LANES - 1));
            }
        }
        let mut a_offset = 0;
        let mut b = tile.b;
        for _ in 0..tile.k / UNROLL {
            for u in 0..UNROLL {
                let b = b.add(u * tile.b_row_stride);
                step::<V, M, N, PARTIAL>(&mut sums, &a_rows, a_offset + u * a_col_stride, b, tile.n_last);
            }
            a_offset += UNROLL * a_col_stride;
            b = b.wrapping_add(UNROLL * tile.b_row_stride);
        }
        for _ in 0..tile.k % UNROLL {
            step::<V, M, N, PARTIAL>(&mut sums, &a_rows, a_offset, b, tile.n_last);
            a_offset += a_col_stride;
            b = b.wrapping_add(tile.b_row_stride);
        }
        let from = (tile.from, tile.from_row_stride);
        finish::<V, M, N, PARTIAL>(&sums, (tile.c, tile.c_row_stride), from, tile.n_last);
    }
}

/// Writes the sums of a tile to C, plus what is at `from` unless that is null. Both are given with the stride of rows.
///
/// # Safety
/// `c` reaches over M rows of N vectors, the last cut to `n_last`, and so does `from`.
#[inline(always)]
pub(super) unsafe fn finish<V: Vector, const M: usize, const N: usize, const PARTIAL: bool>(
    sums: &[[V; N]; M],
    (c, c_row_stride): (*mut V::Elem, usize),
    (from, from_row_stride): (*const V::Elem, usize),
    n_last: usize,
) {
    // SAFETY: passed on to the caller.
    unsafe {
        let one = V::splat(<V::Elem as super::Element>::ONE);
        for row in 0..M {
            for vector in 0..N {
                let at = c.add(row * c_row_stride + vector * V::LANES);
                let mut sum = sums[row][vector];
                if !from.is_null() {
                    let from = from.add(row * from_row_stride + vector * V::LANES);
                    sum = load_part::<V, N, PARTIAL>(from, vector, n_last).mul_add(one, sum);
                }
                if PARTIAL && vector == N - 1 { sum.store_first(at, n_last) } else { sum.store(at) }
            }
        }
    }
}

/// One step of k: `sums += a column · b row`.
///
/// A function and not a closure: a closure may stay a call, and then without the instruction set.
///
/// # Safety
/// The rows of A have an element at `a_offset`, and `b` a row of the tile.
#[inline(always)]
pub(super) unsafe fn step<V: Vector, const M: usize, const N: usize, const PARTIAL: bool>(
    sums: &mut [[V; N]; M],
    a_rows: &[*const V::Elem; M],
    a_offset: usize,
    b: *const V::Elem,
    n_last: usize,
) {
    // SAFETY: passed on to the caller; each entry of `b_row` is written before it is read.
    unsafe {
        let mut b_row = [MaybeUninit::<V>::uninit(); N];
        for vector in 0..N {
            b_row[vector].write(load_part::<V, N, PARTIAL>(b.add(vector * V::LANES), vector, n_last));
        }
        for row in 0..M {
            let a_value = V::splat(*a_rows[row].add(a_offset));
            for vector in 0..N {
                sums[row][vector] = a_value.mul_add(b_row[vector].assume_init(), sums[row][vector]);
            }
        }
    }
}

/// Vector `vector` of the N of a tile row, of which the last may be a part.
///
/// # Safety
/// The elements that exist are valid for reads.
#[inline(always)]
unsafe fn load_part<V: Vector, const N: usize, const PARTIAL: bool>(
    at: *const V::Elem,
    vector: usize,
    n_last: usize,
) -> V {
    // SAFETY: passed on to the caller.
    unsafe { if PARTIAL && vector == N - 1 { V::load_first(at, n_last) } else { V::load(at) } }
}

/// Instantiates the kernels for one vector type: a module with a `KERNELS`. The literals are the tile
/// heights and widths to generate; the last ones are those of a full tile.
macro_rules! kernels {
    ($name:ident, $vector:ty, $elem:ty, [$($m:literal)*], [$($n:literal)*] $(, $features:literal)?) => {
        mod $name {
            use super::super::gemv::{axpy_body, dots_body};
            use super::super::windows::window_body;
            use super::{Axpy, Dots, Kernels, Tile, TileFn, Vector, WindowTile};
            #[allow(unused_imports, reason = "the portable kernels need none of the vector types")]
            use super::types::*;

            const MR: usize = [$($m),*].len();
            const NV: usize = [$($n),*].len();

            pub(super) static KERNELS: Kernels<$elem> = Kernels {
                mr: MR,
                nr: NV * <$vector as Vector>::LANES,
                lanes: <$vector as Vector>::LANES,
                pick,
                pick_window,
                dots,
                axpy,
            };

            fn pick(rows: usize, vectors: usize, partial: bool, a_packed: bool) -> TileFn<$elem> {
                match (partial, a_packed) {
                    (false, false) => pick_cols::<false, 0>(rows, vectors),
                    (false, true) => pick_cols::<false, MR>(rows, vectors),
                    (true, false) => pick_cols::<true, 0>(rows, vectors),
                    (true, true) => pick_cols::<true, MR>(rows, vectors),
                }
            }

            fn pick_window(rows: usize, vectors: usize, partial: bool) -> unsafe fn(&WindowTile<$elem>) {
                match (vectors, partial) {
                    $(($n, false) => window_rows::<$n, false>(rows), ($n, true) => window_rows::<$n, true>(rows),)*
                    _ => unreachable!("a tile has 1 to {NV} vectors, not {vectors}"),
                }
            }

            fn window_rows<const N: usize, const PARTIAL: bool>(rows: usize) -> unsafe fn(&WindowTile<$elem>) {
                match rows {
                    $($m => window::<$m, N, PARTIAL>,)*
                    _ => unreachable!("a tile has 1 to {MR} rows, not {rows}"),
                }
            }

            fn pick_cols<const PARTIAL: bool, const PANEL: usize>(rows: usize, vectors: usize) -> TileFn<$elem> {
                match vectors {
                    $($n => pick_rows::<$n, PARTIAL, PANEL>(rows),)*
                    _ => unreachable!("a tile has 1 to {NV} vectors, not {vectors}"),
                }
            }

            fn pick_rows<const N: usize, const PARTIAL: bool, const PANEL: usize>(rows: usize) -> TileFn<$elem> {
                match rows {
                    $($m => tile::<$m, N, PARTIAL, PANEL>,)*
                    _ => unreachable!("a tile has 1 to {MR} rows, not {rows}"),
                }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn tile<const M: usize, const N: usize, const PARTIAL: bool, const PANEL: usize>(
                tile: &Tile<$elem>,
            ) {
                // SAFETY: passed on to the caller; the attribute compiles the body for its vectors.
                unsafe { super::tile_body::<$vector, M, N, PARTIAL, PANEL>(tile) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn window<const M: usize, const N: usize, const PARTIAL: bool>(tile: &WindowTile<$elem>) {
                // SAFETY: passed on to the caller; the attribute compiles the body for its vectors.
                unsafe { window_body::<$vector, M, N, PARTIAL, MR>(tile) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn dots(dots: &Dots<$elem>) {
                // SAFETY: passed on to the caller; the attribute compiles the body for its vectors.
                unsafe { dots_body::<$vector>(dots) }
            }

            $(#[target_feature(enable = $features)])?
            unsafe fn axpy(axpy: &Axpy<$elem>) {
                // SAFETY: passed on to the caller; the attribute compiles the body for its vectors.
                unsafe { axpy_body::<$vector>(axpy) }
            }
        }
    };
}

mod types {
    pub(super) use super::Plain;
    #[cfg(target_arch = "aarch64")]
    pub(super) use std::arch::aarch64::{float32x4_t, float64x2_t};
    #[cfg(target_arch = "x86_64")]
    pub(super) use std::arch::x86_64::{__m256, __m256d, __m512, __m512d};
}

// C takes 12 of 16 registers (AVX2) or 24 of 32 (AVX-512, NEON), B and the broadcast of A take the rest.
kernels!(plain_f32, Plain<f32>, f32, [1 2 3 4], [1 2]);
kernels!(plain_f64, Plain<f64>, f64, [1 2 3 4], [1 2]);
#[cfg(target_arch = "x86_64")]
kernels!(avx2_f32, __m256, f32, [1 2 3 4 5 6], [1 2], "avx2,fma");
#[cfg(target_arch = "x86_64")]
kernels!(avx2_f64, __m256d, f64, [1 2 3 4 5 6], [1 2], "avx2,fma");
#[cfg(target_arch = "x86_64")]
kernels!(avx512_f32, __m512, f32, [1 2 3 4 5 6 7 8], [1 2 3], "avx512f,avx512vl");
#[cfg(target_arch = "x86_64")]
kernels!(avx512_f64, __m512d, f64, [1 2 3 4 5 6 7 8], [1 2 3], "avx512f,avx512vl");
#[cfg(target_arch = "aarch64")]
kernels!(neon_f32, float32x4_t, f32, [1 2 3 4 5 6 7 8], [1 2 3], "neon");
#[cfg(target_arch = "aarch64")]
kernels!(neon_f64, float64x2_t, f64, [1 2 3 4 5 6 7 8], [1 2 3], "neon");
