//! Transposing a strided matrix into rows that lie straight.
//!
//! Goes by tiles of whole cache lines: with sizes that are powers of two, the lines of a column share one
//! set of the cache, so a line that is not used up at once is fetched again. Each tile is turned in
//! registers and a small buffer, and leaves line by line.

/// Elements on a side of a tile: as many f32 as a cache line holds.
pub const TILE: usize = 16;
/// Elements on a side of a block of tiles, so few that the address cache covers its rows on both sides.
const BLOCK: usize = 4 * TILE;

/// `y[r][c] = x[c · stride + r]`, where `y` has rows of `columns` elements. Runs on the calling thread.
///
/// # Panics
/// When `y` is no whole number of rows, or `x` ends before the last element that is needed.
pub fn transpose<T: Copy + Default>(x: &[T], stride: usize, columns: usize, y: &mut [T]) {
    if y.is_empty() {
        return;
    }
    assert!(
        columns > 0 && y.len().is_multiple_of(columns),
        "transpose: the result is no whole number of rows"
    );
    let rows = y.len() / columns;
    assert!(
        (columns - 1).checked_mul(stride).and_then(|n| n.checked_add(rows)).is_some_and(|end| end <= x.len()),
        "transpose: the operand is too short"
    );
    for r0 in (0..rows).step_by(BLOCK) {
        for c0 in (0..columns).step_by(BLOCK) {
            for r in (r0..rows.min(r0 + BLOCK)).step_by(TILE) {
                for c in (c0..columns.min(c0 + BLOCK)).step_by(TILE) {
                    let (height, width) = (TILE.min(rows - r), TILE.min(columns - c));
                    if (height, width) == (TILE, TILE) {
                        tile(&x[c * stride + r..], stride, &mut y[r * columns + c..], columns);
                        continue;
                    }
                    for i in 0..height {
                        let y = &mut y[(r + i) * columns + c..][..width];
                        y.iter_mut().enumerate().for_each(|(j, y)| *y = x[(c + j) * stride + r + i]);
                    }
                }
            }
        }
    }
}

/// One full tile: `y[r · columns + c] = x[c · stride + r]` for r and c below `TILE`.
#[inline]
fn tile<T: Copy + Default>(x: &[T], stride: usize, y: &mut [T], columns: usize) {
    assert!(
        (TILE - 1) * stride + TILE <= x.len() && (TILE - 1) * columns + TILE <= y.len(),
        "a full tile lies inside operand and result"
    );
    #[cfg(target_arch = "x86_64")]
    if crate::simd::isa() >= crate::simd::Isa::Avx2 {
        let (from, to) = (x.as_ptr(), y.as_mut_ptr());
        // SAFETY: the machine has AVX2, the tile lies inside both slices as asserted, which do not overlap
        // as one is borrowed mutably, and the size of an element is the one that the function asks for.
        // Any bits may be moved as if they were floats.
        unsafe {
            match size_of::<T>() {
                4 => return avx2::tile_4(from.cast(), stride, to.cast(), columns),
                8 => return avx2::tile_8(from.cast(), stride, to.cast(), columns),
                _ => {}
            }
        }
    }
    tile_any(x, stride, y, columns);
}

/// Lines in, lines out, one element at a time in between.
#[inline(always)]
fn tile_any<T: Copy + Default>(x: &[T], stride: usize, y: &mut [T], columns: usize) {
    let mut buffer = [[T::default(); TILE]; TILE];
    for (c, line) in buffer.iter_mut().enumerate() {
        line.copy_from_slice(&x[c * stride..][..TILE]);
    }
    for r in 0..TILE {
        let row: [T; TILE] = std::array::from_fn(|c| buffer[c][r]);
        y[r * columns..][..TILE].copy_from_slice(&row);
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256, __m256d, _mm256_loadu_pd, _mm256_loadu_ps, _mm256_permute2f128_pd, _mm256_permute2f128_ps,
        _mm256_setzero_pd, _mm256_setzero_ps, _mm256_shuffle_pd, _mm256_shuffle_ps, _mm256_storeu_pd,
        _mm256_storeu_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps,
    };

    use super::TILE;

    /// A tile of elements of four bytes.
    ///
    /// # Safety
    /// The CPU has AVX2. `x` reaches over `TILE` lines of `TILE` elements, `stride` apart, and `y` over as
    /// many, `columns` apart; they do not overlap.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn tile_4(x: *const f32, stride: usize, y: *mut f32, columns: usize) {
        // Two registers per row of the result.
        let mut rows = [[_mm256_setzero_ps(); 2]; TILE];
        for half in [0, 1] {
            for r in [0, 8] {
                // SAFETY: eight elements from `r` of line `8 * half + k < TILE`.
                let l: [__m256; 8] =
                    std::array::from_fn(|k| unsafe { _mm256_loadu_ps(x.add((8 * half + k) * stride + r)) });
                // Pairs, then fours of columns, then halves.
                let pair =
                    |a: usize| (_mm256_unpacklo_ps(l[a], l[a + 1]), _mm256_unpackhi_ps(l[a], l[a + 1]));
                let four =
                    |a: __m256, b: __m256| (_mm256_shuffle_ps::<0x44>(a, b), _mm256_shuffle_ps::<0xee>(a, b));
                let ((a0, a1), (a2, a3), (a4, a5), (a6, a7)) = (pair(0), pair(2), pair(4), pair(6));
                let ((b0, b1), (b2, b3)) = (four(a0, a2), four(a1, a3));
                let ((b4, b5), (b6, b7)) = (four(a4, a6), four(a5, a7));
                let columns = [(b0, b4), (b1, b5), (b2, b6), (b3, b7)];
                for (k, (low, high)) in columns.into_iter().enumerate() {
                    rows[r + k][half] = _mm256_permute2f128_ps::<0x20>(low, high);
                    rows[r + 4 + k][half] = _mm256_permute2f128_ps::<0x31>(low, high);
                }
            }
        }
        for (r, row) in rows.into_iter().enumerate() {
            // SAFETY: the sixteen elements of row `r < TILE`.
            unsafe {
                _mm256_storeu_ps(y.add(r * columns), row[0]);
                _mm256_storeu_ps(y.add(r * columns + 8), row[1]);
            }
        }
    }

    /// A tile of elements of eight bytes.
    ///
    /// # Safety
    /// As for [`tile_4`].
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn tile_8(x: *const f64, stride: usize, y: *mut f64, columns: usize) {
        // Half a tile of rows at a time: they are two cache lines long.
        for r0 in [0, 8] {
            let mut rows = [[_mm256_setzero_pd(); 4]; 8];
            for quarter in [0, 1, 2, 3] {
                for r in [0, 4] {
                    // SAFETY: four elements from `r0 + r <= TILE - 4` of line `4 * quarter + k < TILE`.
                    let l: [__m256d; 4] = std::array::from_fn(|k| unsafe {
                        _mm256_loadu_pd(x.add((4 * quarter + k) * stride + r0 + r))
                    });
                    let pair = |a: usize| {
                        (_mm256_shuffle_pd::<0x0>(l[a], l[a + 1]), _mm256_shuffle_pd::<0xf>(l[a], l[a + 1]))
                    };
                    let ((a0, a1), (a2, a3)) = (pair(0), pair(2));
                    for (k, (low, high)) in [(a0, a2), (a1, a3)].into_iter().enumerate() {
                        rows[r + k][quarter] = _mm256_permute2f128_pd::<0x20>(low, high);
                        rows[r + 2 + k][quarter] = _mm256_permute2f128_pd::<0x31>(low, high);
                    }
                }
            }
            for (r, row) in rows.into_iter().enumerate() {
                for (q, quarter) in row.into_iter().enumerate() {
                    // SAFETY: four of the sixteen elements of row `r0 + r < TILE`.
                    unsafe { _mm256_storeu_pd(y.add((r0 + r) * columns + 4 * q), quarter) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::transpose;

    fn check<T: Copy + Default + PartialEq + std::fmt::Debug>(element: impl Fn(usize) -> T) {
        for (rows, columns, stride) in
            [(1, 1, 1), (16, 16, 16), (17, 33, 40), (64, 80, 64), (100, 3, 101), (3, 100, 5), (130, 67, 131)]
        {
            let x: Vec<T> = (0..(columns - 1) * stride + rows).map(&element).collect();
            let mut y = vec![T::default(); rows * columns];
            transpose(&x, stride, columns, &mut y);
            for (i, y) in y.iter().enumerate() {
                assert_eq!(*y, x[i % columns * stride + i / columns], "{rows} x {columns} from {stride}");
            }
        }
    }

    #[test]
    fn every_element_lands_in_its_place() {
        check(|i| i as u8);
        check(|i| i as u16);
        check(|i| i as u32);
        check(|i| i as f32);
        check(|i| i as i64);
        check(|i| f64::from(i as u32));
    }

    /// Bits that are signalling NaN as floats must come through untouched.
    #[test]
    fn bits_are_not_interpreted() {
        check(|i| 0x7f80_0001u32 + i as u32);
        check(|i| 0x7ff0_0000_0000_0001u64 + i as u64);
    }
}
