//! The forward pass: a running softmax over blocks of keys.

use std::ops::Range;

use super::{Heads, ROWS, Scores, scaled, sizes};
use crate::gemm::MatRef;
use crate::gemm::packed::{Packed, gemm_packed, packed_len, with_scratch};
use crate::math::exponential::exp;
use crate::rows::reduce::{Max, Sum, reduce};
use crate::simd::scalar::Lane;
use crate::simd::vector::F32s;
use crate::simd::{Body, dispatch};
use crate::stream::split::SharedMut;
use crate::threads::{parallel, threads};

/// Keys of a block: a multiple of the panel widths of all instruction sets. The scores of a block, 27 KB,
/// stay in L1.
const KEYS: usize = 144;

/// Multiply-adds from which more threads than one are worth their wake-up.
const PARALLEL_MIN: usize = 1 << 18;

/// y = softmax(q kᵀ · scale + mask) v. q: (heads, queries, width), k: (heads, keys, width),
/// v: (heads, keys, out), y: (heads, queries, out) dense. Zeros where there are no keys, or
/// none that the mask lets a query see.
pub fn attention(q: Heads, k: Heads, v: Heads, scores: Scores, y: &mut [f32]) {
    let [n_heads, n_queries, n_keys, width, out] = sizes(&q, &k, &v);
    assert_eq!(y.len(), n_heads * n_queries * out, "attention: the result has another size");
    if y.is_empty() {
        return;
    }
    // Each task packs the keys and values of its head, so heads are cut only when there are few of them.
    let n_blocks = n_queries.div_ceil(ROWS);
    let n_parts = (4 * threads()).div_ceil(n_heads).min(n_blocks);
    let part = n_blocks.div_ceil(n_parts) * ROWS;
    let y = SharedMut::new(y);
    let task = |task: usize| {
        let (head, from) = (task / n_parts, task % n_parts * part);
        let rows = from.min(n_queries)..(from + part).min(n_queries);
        let at = head * n_queries;
        // SAFETY: each task has its own rows of its own head.
        let y = unsafe { y.range((at + rows.start) * out..(at + rows.end) * out) };
        attend([q, k, v], head, rows, scores, y);
    };
    if y_work(n_heads * n_queries * n_keys, width + out) {
        parallel(n_heads * n_parts, &task);
    } else {
        (0..n_heads * n_parts).for_each(task);
    }
}

fn y_work(n_scores: usize, per_score: usize) -> bool {
    n_scores.saturating_mul(per_score) >= PARALLEL_MIN
}

/// Some query rows of one head.
fn attend([q, k, v]: [Heads; 3], head: usize, queries: Range<usize>, scores: Scores, y: &mut [f32]) {
    let (width, out) = (q.cols, v.cols);
    let n_keys = if queries.is_empty() { 0 } else { scores.visible(queries.end - 1, k.rows) };
    let lens =
        [packed_len(width, n_keys), packed_len(n_keys, out), ROWS * width, ROWS * KEYS, ROWS * out, 2 * ROWS];
    with_scratch(lens.iter().sum(), |room| {
        let [keys, values, q_room, p, sums, state] = cut(room, lens);
        let keys = Packed::new(k.part(head, 0..n_keys).t(), keys);
        let values = Packed::new(v.part(head, 0..n_keys), values);
        for (from, y) in queries.clone().step_by(ROWS).zip(y.chunks_mut(ROWS * out)) {
            let rows = from..queries.end.min(from + ROWS);
            scaled(q.part(head, rows.clone()), scores.scale, q_room);
            let q = MatRef::row_major(q_room, rows.len(), width);
            let sums = &mut sums[..rows.len() * out];
            let (max, total) = state.split_at_mut(ROWS);
            max.fill(f32::NEG_INFINITY);
            total.fill(0.0);
            sums.fill(0.0);
            let last_key = scores.visible(rows.end - 1, n_keys);
            for key in (0..last_key).step_by(KEYS) {
                let block = key..last_key.min(key + KEYS);
                gemm_packed(q, keys.cols(block.clone()), p, KEYS, false);
                if let Some(mask) = scores.mask {
                    for (row, p) in rows.clone().zip(p.chunks_exact_mut(KEYS)) {
                        mask.apply(head, row, block.clone(), p);
                    }
                }
                let (rows, block, sums) = (rows.clone(), block.clone(), &mut *sums);
                dispatch(Softmax { scores, rows, block, p, max, total, sums, out });
                let p = MatRef::new(p, q.rows(), last_key.min(key + KEYS) - key, KEYS, 1);
                gemm_packed(p, values.rows(key..last_key.min(key + KEYS)), sums, out, true);
            }
            if n_keys == 0 {
                y.fill(0.0);
                continue;
            }
            for ((y, sums), total) in y.chunks_exact_mut(out).zip(sums.chunks_exact(out)).zip(&*total) {
                if scores.mask.is_some() && *total == 0.0 {
                    y.fill(0.0);
                    continue;
                }
                y.iter_mut().zip(sums).for_each(|(y, sum)| *y = sum / total);
            }
        }
    });
}

/// Cuts scratch memory into pieces of the given lengths.
pub(super) fn cut<const N: usize>(mut room: &mut [f32], lens: [usize; N]) -> [&mut [f32]; N] {
    lens.map(|len| room.split_off_mut(..len).expect("the scratch memory is the sum of its pieces"))
}

/// Turns the scores of a block into weights against the running maximum, and brings what was summed
/// before to the same maximum.
struct Softmax<'a> {
    scores: Scores<'a>,
    rows: Range<usize>,
    block: Range<usize>,
    /// Scores of each row, `KEYS` apart.
    p: &'a mut [f32],
    max: &'a mut [f32],
    total: &'a mut [f32],
    /// (rows, out).
    sums: &'a mut [f32],
    out: usize,
}

impl Body for Softmax<'_> {
    type Out = ();

    #[inline(always)]
    fn run<V: F32s>(self, v: V) {
        for (i, row) in self.rows.enumerate() {
            let p = &mut self.p[i * KEYS..][..self.block.len()];
            let n = self.scores.visible(row, self.block.end).saturating_sub(self.block.start);
            let (seen, hidden) = p.split_at_mut(n.min(self.block.len()));
            hidden.fill(0.0);
            if seen.is_empty() {
                continue;
            }
            let max = Lane(self.max[i]).max_or_nan(Lane(reduce(v, Max { x: seen }))).0;
            // Nothing but −∞ so far: all weights are 0, and what comes later may still count.
            let shift = if max == f32::NEG_INFINITY { 0.0 } else { max };
            exp_in_place(v, seen, shift);
            let fade = exp(Lane(self.max[i] - shift)).0;
            self.total[i] = self.total[i] * fade + reduce(v, Sum { x: seen });
            self.max[i] = max;
            if self.block.start > 0 {
                self.sums[i * self.out..][..self.out].iter_mut().for_each(|sum| *sum *= fade);
            }
        }
    }
}

/// x = exp(x − shift).
#[inline(always)]
pub(super) fn exp_in_place<V: F32s>(v: V, x: &mut [f32], shift: f32) {
    let (len, at, shift) = (x.len(), x.as_mut_ptr(), v.splat(shift));
    let mut i = 0;
    // SAFETY: both loops stay below `len`; the vector at hand proves its instruction set.
    unsafe {
        while i + 2 * V::LANES <= len {
            // Two at once: their chains of dependent operations overlap.
            let (a, b) = (V::load(at.add(i)) - shift, V::load(at.add(i + V::LANES)) - shift);
            let (a, b) = (exp(a), exp(b));
            a.store(at.add(i));
            b.store(at.add(i + V::LANES));
            i += 2 * V::LANES;
        }
        while i < len {
            let n = (len - i).min(V::LANES);
            exp(V::load_n(at.add(i), n, 0.0) - shift).store_n(at.add(i), n);
            i += n;
        }
    }
}
