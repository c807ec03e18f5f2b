//! Packing: copies a strided matrix into panels that the tile kernel reads from end to end.
//!
//! A panel is `width` rows of A, or columns of B, side by side for each p of the shared dimension:
//! `panel[p * width + i]`. What is missing at the edge of the matrix is zero, as far as anybody reads it. Both memory orders of the
//! source are fast; other strides work.

use super::Element;
use crate::stream::prefetch;

/// Numbers of f32 in a line of the cache, and in the widest vector.
const LINE: usize = 16;

/// `width`-wide panels out of a matrix: element (i, p) is `from[i * stride_i + p * stride_p]`.
#[derive(Clone, Copy)]
pub(super) struct Source<T> {
    pub from: *const T,
    pub stride_i: usize,
    pub stride_p: usize,
}

/// Packs one panel of `k × width`, of which `n_valid` columns exist in the source.
///
/// # Safety
/// The source reaches over `n_valid × k` elements and `to` over `k * width`; they do not overlap.
/// `n_valid <= width`.
pub(super) unsafe fn pack_panel<T: Element>(
    source: Source<T>,
    n_valid: usize,
    width: usize,
    k: usize,
    to: *mut T,
) {
    // SAFETY: passed on to the caller. The constants let the compiler unroll the usual widths.
    unsafe {
        match width {
            4 => pack_const::<T, 4>(source, n_valid, k, to),
            6 => pack_const::<T, 6>(source, n_valid, k, to),
            8 => pack_const::<T, 8>(source, n_valid, k, to),
            12 => pack_const::<T, 12>(source, n_valid, k, to),
            16 => pack_const::<T, 16>(source, n_valid, k, to),
            24 => pack_const::<T, 24>(source, n_valid, k, to),
            48 => pack_const::<T, 48>(source, n_valid, k, to),
            _ => unreachable!("no instruction set has panels of width {width}"),
        }
    }
}

/// # Safety
/// As for [`pack_panel`] with width `W`.
unsafe fn pack_const<T: Element, const W: usize>(source: Source<T>, n_valid: usize, k: usize, to: *mut T) {
    let Source { from, stride_i, stride_p } = source;
    // SAFETY: every read is at some (i, p) with `i < n_valid`, `p < k`; every write is in row `p < k` of
    // the panel, at a column below W.
    unsafe {
        if n_valid == W && stride_i == 1 {
            for p in 0..k {
                let row: [T; W] = from.add(p * stride_p).cast::<[T; W]>().read_unaligned();
                to.add(p * W).cast::<[T; W]>().write_unaligned(row);
            }
            return;
        }
        let mut p = 0;
        if n_valid >= 4 && stride_p == 1 {
            while p + 4 <= k {
                // Four rows at a time, and of each all of a cache line: rows a large power of two apart fall into one set
                // of the cache, which holds half of the rows of a panel. The next line of each row is asked for, as there
                // are more rows than the hardware follows.
                let end = if p + LINE <= k { p + LINE } else { p + 4 };
                let mut i = 0;
                while i < n_valid {
                    // The last block of a number that is no multiple of four overlaps the one before.
                    let i_block = i.min(n_valid - 4);
                    for row in 0..4 {
                        prefetch(from.wrapping_add((i_block + row) * stride_i + end));
                    }
                    for p in (p..end).step_by(4) {
                        T::transpose_4x4(
                            from.add(i_block * stride_i + p),
                            stride_i,
                            to.add(p * W + i_block),
                            W,
                        );
                    }
                    i += 4;
                }
                for p in p..end {
                    fill_up::<T, W>(n_valid, to.add(p * W));
                }
                p = end;
            }
        }
        while p < k {
            let row = from.add(p * stride_p);
            for i in 0..n_valid {
                to.add(p * W + i).write(*row.add(i * stride_i));
            }
            fill_up::<T, W>(n_valid, to.add(p * W));
            p += 1;
        }
    }
}

/// Writes zeros behind the valid columns of a row of a panel, as far as a vector that begins with one reaches: a kernel reads
/// no others.
///
/// # Safety
/// `to` has room for `W` elements.
#[inline(always)]
unsafe fn fill_up<T: Element, const W: usize>(n_valid: usize, to: *mut T) {
    for i in n_valid..n_valid.next_multiple_of(LINE).min(W) {
        // SAFETY: a column below W.
        unsafe { to.add(i).write(T::ZERO) };
    }
}

/// `to[c * to_stride + r] = from[r * from_stride + c]` for r, c below 4.
///
/// # Safety
/// Both pointers reach over their 4×4 block.
#[inline(always)]
pub(super) unsafe fn transpose_4x4<T: Element>(
    from: *const T,
    from_stride: usize,
    to: *mut T,
    to_stride: usize,
) {
    // SAFETY: each access is a row of four of the caller's blocks.
    unsafe {
        let row = |r: usize| from.add(r * from_stride).cast::<[T; 4]>().read_unaligned();
        let [r0, r1, r2, r3] = [row(0), row(1), row(2), row(3)];
        for c in 0..4 {
            let column = [r0[c], r1[c], r2[c], r3[c]];
            to.add(c * to_stride).cast::<[T; 4]>().write_unaligned(column);
        }
    }
}

/// [`transpose_4x4`] in the registers that every x86-64 has: the compiler makes single moves of the other one, and packing
/// then took a tenth of a training step.
///
/// # Safety
/// As for [`transpose_4x4`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn transpose_4x4_sse(from: *const f32, from_stride: usize, to: *mut f32, to_stride: usize) {
    use std::arch::x86_64::{
        _mm_loadu_ps, _mm_movehl_ps, _mm_movelh_ps, _mm_storeu_ps, _mm_unpackhi_ps, _mm_unpacklo_ps,
    };
    // SAFETY: each access is a row of four of the caller's blocks.
    unsafe {
        let row = |r: usize| _mm_loadu_ps(from.add(r * from_stride));
        let [r0, r1, r2, r3] = [row(0), row(1), row(2), row(3)];
        let (low01, low23) = (_mm_unpacklo_ps(r0, r1), _mm_unpacklo_ps(r2, r3));
        let (high01, high23) = (_mm_unpackhi_ps(r0, r1), _mm_unpackhi_ps(r2, r3));
        _mm_storeu_ps(to, _mm_movelh_ps(low01, low23));
        _mm_storeu_ps(to.add(to_stride), _mm_movehl_ps(low23, low01));
        _mm_storeu_ps(to.add(2 * to_stride), _mm_movelh_ps(high01, high23));
        _mm_storeu_ps(to.add(3 * to_stride), _mm_movehl_ps(high23, high01));
    }
}
