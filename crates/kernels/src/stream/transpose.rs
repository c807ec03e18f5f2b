//! Transposing a strided matrix into rows that lie straight.
//!
//! Goes by tiles of whole cache lines: with sizes that are powers of two, the lines of a column share one
//! set of the cache, so a line that is not used up at once is fetched again. Each tile is turned in
//! registers into a small buffer of its own, and leaves it line by line.

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
    assert!(columns > 0 && y.len() % columns == 0, "transpose: the result is no whole number of rows");
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

/// A tile on its way, by rows of the result.
type Buffer<T> = [[T; TILE]; TILE];

/// One full tile.
#[inline]
fn tile<T: Copy + Default>(x: &[T], stride: usize, y: &mut [T], columns: usize) {
    let mut buffer: Buffer<T> = [[T::default(); TILE]; TILE];
    let lines: [&[T; TILE]; TILE] =
        std::array::from_fn(|c| x[c * stride..].first_chunk().expect("a full tile lies inside the operand"));
    turn(lines, &mut buffer);
    for (r, line) in buffer.iter().enumerate() {
        y[r * columns..][..TILE].copy_from_slice(line);
    }
}

/// `buffer[r][c] = lines[c][r]`.
#[inline]
fn turn<T: Copy>(lines: [&[T; TILE]; TILE], buffer: &mut Buffer<T>) {
    #[cfg(target_arch = "x86_64")]
    if crate::simd::isa() >= crate::simd::Isa::Avx2 {
        // SAFETY: the machine has AVX2, and the size of an element is the one the function asks for. Any
        // bits are an f32 or f64 as far as moving them goes.
        match size_of::<T>() {
            4 => {
                return unsafe { avx2::turn_4(lines.map(|l| l.as_ptr().cast()), buffer.as_mut_ptr().cast()) };
            }
            8 => {
                return unsafe { avx2::turn_8(lines.map(|l| l.as_ptr().cast()), buffer.as_mut_ptr().cast()) };
            }
            _ => {}
        }
    }
    turn_any(lines, buffer);
}

/// In blocks of four, which the compiler turns into shuffles.
fn turn_any<T: Copy>(lines: [&[T; TILE]; TILE], buffer: &mut Buffer<T>) {
    for c in (0..TILE).step_by(4) {
        for r in (0..TILE).step_by(4) {
            let block: [[T; 4]; 4] = std::array::from_fn(|k| {
                let line = lines[c + k];
                [line[r], line[r + 1], line[r + 2], line[r + 3]]
            });
            for k in 0..4 {
                buffer[r + k][c..c + 4].copy_from_slice(&block.map(|row| row[k]));
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::{
        __m256, __m256d, _mm256_loadu_pd, _mm256_loadu_ps, _mm256_permute2f128_pd, _mm256_permute2f128_ps,
        _mm256_shuffle_pd, _mm256_shuffle_ps, _mm256_storeu_pd, _mm256_storeu_ps, _mm256_unpackhi_ps,
        _mm256_unpacklo_ps,
    };

    use super::TILE;

    /// `to[r * TILE + c] = lines[c][r]` for elements of four bytes.
    ///
    /// # Safety
    /// The CPU has AVX2; each line reaches over `TILE` elements and `to` over `TILE * TILE`, apart from
    /// the lines.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn turn_4(lines: [*const f32; TILE], to: *mut f32) {
        for c in (0..TILE).step_by(8) {
            for r in (0..TILE).step_by(8) {
                // SAFETY: eight elements from `r <= TILE - 8` of each line.
                let l: [__m256; 8] = std::array::from_fn(|k| unsafe { _mm256_loadu_ps(lines[c + k].add(r)) });
                // Pairs, then fours of columns, then halves.
                let pair =
                    |a: usize| (_mm256_unpacklo_ps(l[a], l[a + 1]), _mm256_unpackhi_ps(l[a], l[a + 1]));
                let four =
                    |a: __m256, b: __m256| (_mm256_shuffle_ps::<0x44>(a, b), _mm256_shuffle_ps::<0xee>(a, b));
                let ((a0, a1), (a2, a3), (a4, a5), (a6, a7)) = (pair(0), pair(2), pair(4), pair(6));
                let ((b0, b1), (b2, b3)) = (four(a0, a2), four(a1, a3));
                let ((b4, b5), (b6, b7)) = (four(a4, a6), four(a5, a7));
                let columns = [
                    _mm256_permute2f128_ps::<0x20>(b0, b4),
                    _mm256_permute2f128_ps::<0x20>(b1, b5),
                    _mm256_permute2f128_ps::<0x20>(b2, b6),
                    _mm256_permute2f128_ps::<0x20>(b3, b7),
                    _mm256_permute2f128_ps::<0x31>(b0, b4),
                    _mm256_permute2f128_ps::<0x31>(b1, b5),
                    _mm256_permute2f128_ps::<0x31>(b2, b6),
                    _mm256_permute2f128_ps::<0x31>(b3, b7),
                ];
                for (k, column) in columns.into_iter().enumerate() {
                    // SAFETY: eight elements from column `c <= TILE - 8` of row `r + k < TILE`.
                    unsafe { _mm256_storeu_ps(to.add((r + k) * TILE + c), column) };
                }
            }
        }
    }

    /// `to[r * TILE + c] = lines[c][r]` for elements of eight bytes.
    ///
    /// # Safety
    /// As for [`turn_4`].
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn turn_8(lines: [*const f64; TILE], to: *mut f64) {
        for c in (0..TILE).step_by(4) {
            for r in (0..TILE).step_by(4) {
                // SAFETY: four elements from `r <= TILE - 4` of each line.
                let l: [__m256d; 4] =
                    std::array::from_fn(|k| unsafe { _mm256_loadu_pd(lines[c + k].add(r)) });
                let pair = |a: usize| {
                    (_mm256_shuffle_pd::<0x0>(l[a], l[a + 1]), _mm256_shuffle_pd::<0xf>(l[a], l[a + 1]))
                };
                let ((a0, a1), (a2, a3)) = (pair(0), pair(2));
                let columns = [
                    _mm256_permute2f128_pd::<0x20>(a0, a2),
                    _mm256_permute2f128_pd::<0x20>(a1, a3),
                    _mm256_permute2f128_pd::<0x31>(a0, a2),
                    _mm256_permute2f128_pd::<0x31>(a1, a3),
                ];
                for (k, column) in columns.into_iter().enumerate() {
                    // SAFETY: four elements from column `c <= TILE - 4` of row `r + k < TILE`.
                    unsafe { _mm256_storeu_pd(to.add((r + k) * TILE + c), column) };
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
