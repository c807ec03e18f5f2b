//! The blocks of bf16 products by the dot products of AVX-512, for CPUs that have those (`avx512bf16`) and no tile registers.
//!
//! One instruction multiplies a pair of numbers of a row of A by sixteen pairs of B, one for each column, and adds to
//! sixteen sums in f32. The packed operands are those of the tiles.

use std::arch::x86_64::{
    __m512bh, _mm512_dpbf16_ps, _mm512_loadu_si512, _mm512_set1_epi32, _mm512_setzero_ps, _mm512_storeu_ps,
};

use half::bf16;

use super::bf16::{BLOCK, DEPTH, SIDE, TILE, Tiles};
use crate::simd::{Isa, isa};

/// Rows of a block whose sums are in registers at a time: two vectors for each. A multiple of them is a tile.
const ROWS: usize = 8;

/// Whether this CPU has them. `THALWEG_ISA` below AVX-512 turns them off.
pub(super) fn available() -> bool {
    isa() == Isa::Avx512 && is_x86_feature_detected!("avx512bf16")
}

/// The proof that this CPU has them.
pub(super) struct Dots(());

impl Tiles for Dots {
    fn take() -> Self {
        assert!(available(), "gemm: dot products of bf16 on a CPU that has none");
        Self(())
    }

    unsafe fn block(&self, a: *const bf16, b: *const bf16, n_steps: usize, sums: *mut f32) {
        // SAFETY: `take` has seen the instructions; the rest is handed on.
        unsafe { block(a, b, n_steps, sums) }
    }
}

/// See [`Tiles::block`].
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f,avx512bf16")]
unsafe fn block(a: *const bf16, b: *const bf16, n_steps: usize, sums: *mut f32) {
    for first_row in (0..BLOCK).step_by(ROWS) {
        let mut acc = [[_mm512_setzero_ps(); 2]; ROWS];
        let tile_of_rows = first_row / SIDE * TILE + first_row % SIDE * DEPTH;
        for step in 0..n_steps {
            for pair in 0..SIDE {
                // SAFETY: a step has two tiles of each operand, each of 16 rows of 16 pairs.
                unsafe {
                    let a = a.add(step * 2 * TILE + tile_of_rows + 2 * pair).cast::<i32>();
                    let b = b.add(step * 2 * TILE + pair * DEPTH);
                    let load =
                        |at: *const bf16| -> __m512bh { std::mem::transmute(_mm512_loadu_si512(at.cast())) };
                    let columns = [load(b), load(b.add(TILE))];
                    for (row, acc) in acc.iter_mut().enumerate() {
                        let x = _mm512_set1_epi32(a.add(row * SIDE).read_unaligned());
                        let x: __m512bh = std::mem::transmute(x);
                        acc[0] = _mm512_dpbf16_ps(acc[0], x, columns[0]);
                        acc[1] = _mm512_dpbf16_ps(acc[1], x, columns[1]);
                    }
                }
            }
        }
        for (row, acc) in acc.into_iter().enumerate() {
            // SAFETY: rows of 32 sums.
            unsafe {
                let to = sums.add((first_row + row) * BLOCK);
                _mm512_storeu_ps(to, acc[0]);
                _mm512_storeu_ps(to.add(SIDE), acc[1]);
            }
        }
    }
}
