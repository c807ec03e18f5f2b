//! The backward pass: the weights of a block of rows are made anew, then five products.

use super::forward::{cut, exp_in_place};
use super::{Heads, ROWS, Scores, scaled, sizes};
use crate::gemm::MatRef;
use crate::gemm::packed::{Packed, gemm_packed, packed_len, with_scratch};
use crate::rows::reduce::{Max, Sum, reduce};
use crate::rows::softmax::Dot;
use crate::simd::vector::F32s;
use crate::simd::{Body, dispatch};
use crate::stream::split::SharedMut;
use crate::threads::parallel;

/// What [`attention_backward`] fills, each dense and as large as its operand.
pub struct Gradients<'a> {
    /// (heads, queries, width).
    pub dq: &'a mut [f32],
    /// (heads, keys, width).
    pub dk: &'a mut [f32],
    /// (heads, keys, out).
    pub dv: &'a mut [f32],
}

/// The gradients of [`attention`](super::attention). dy: (heads, queries, out); other shapes as there.
pub fn attention_backward(q: Heads, k: Heads, v: Heads, dy: Heads, scores: Scores, to: Gradients) {
    let [n_heads, n_queries, n_keys, width, out] = sizes(&q, &k, &v);
    assert!(dy.len() == n_heads && dy.rows == n_queries && dy.cols == out, "attention: dy has another shape");
    let Gradients { dq, dk, dv } = to;
    let lens = [n_queries * width, n_keys * width, n_keys * out];
    assert!([&*dq, &*dk, &*dv].iter().zip(lens).all(|(d, len)| d.len() == n_heads * len));
    let [dq, dk, dv] = [dq, dk, dv].map(SharedMut::new);
    // All rows of a head add to the same gradients of keys and values, so a head is one task.
    parallel(n_heads, &|head| {
        // SAFETY: each task has its own head.
        let [dq, dk, dv] = [(&dq, 0), (&dk, 1), (&dv, 2)]
            .map(|(d, i)| unsafe { d.range(head * lens[i]..(head + 1) * lens[i]) });
        one_head([q, k, v, dy], head, scores, Gradients { dq, dk, dv });
    });
}

fn one_head([q, k, v, dy]: [Heads; 4], head: usize, scores: Scores, to: Gradients) {
    let (width, out, n_queries, n_keys) = (q.cols, v.cols, q.rows, k.rows);
    let Gradients { dq, dk, dv } = to;
    dk.fill(0.0);
    dv.fill(0.0);
    if n_keys == 0 || n_queries == 0 {
        return dq.fill(0.0);
    }
    // Rows a multiple of 4 KB apart would share one set of the cache when they are read as columns.
    let ld = n_keys.next_multiple_of(16) + 16;
    let lens = [
        packed_len(width, n_keys),
        packed_len(out, n_keys),
        packed_len(n_keys, width),
        ROWS * width,
        packed_len(ROWS, width),
        packed_len(ROWS, out),
        ROWS * ld,
        ROWS * ld,
    ];
    with_scratch(lens.iter().sum(), |room| {
        let [keys_t, values_t, keys, q_scaled, q_room, dy_room, p, ds] = cut(room, lens);
        let keys_t = Packed::new(k.get(head).t(), keys_t);
        let values_t = Packed::new(v.get(head).t(), values_t);
        let keys = Packed::new(k.get(head), keys);
        for from in (0..n_queries).step_by(ROWS) {
            let rows = from..n_queries.min(from + ROWS);
            let n = scores.visible(rows.end - 1, n_keys);
            let (q, dy) = (q.part(head, rows.clone()), dy.part(head, rows.clone()));
            scaled(q, scores.scale, q_scaled);
            gemm_packed(MatRef::row_major(q_scaled, rows.len(), width), keys_t.cols(0..n), p, ld, false);
            gemm_packed(dy, values_t.cols(0..n), ds, ld, false);
            if let Some(mask) = scores.mask {
                rows.clone().zip(p.chunks_exact_mut(ld)).for_each(|(row, p)| mask.apply(head, row, 0..n, p));
            }
            dispatch(SoftmaxBackward { scores, first: from, n_rows: rows.len(), n, ld, p, ds });
            let (p, ds) = (MatRef::new(p, rows.len(), n, ld, 1), MatRef::new(ds, rows.len(), n, ld, 1));
            gemm_packed(ds, keys.rows(0..n), &mut dq[from * width..], width, false);
            gemm_packed(ds.t(), Packed::new(q, q_room), dk, width, true);
            gemm_packed(p.t(), Packed::new(dy, dy_room), dv, out, true);
        }
    });
}

/// p from scores to weights, and ds = scale · p (dp − Σ p dp) over the gradient dp of the weights.
struct SoftmaxBackward<'a> {
    scores: Scores<'a>,
    first: usize,
    n_rows: usize,
    /// Keys that the last row sees.
    n: usize,
    ld: usize,
    p: &'a mut [f32],
    ds: &'a mut [f32],
}

impl Body for SoftmaxBackward<'_> {
    type Out = ();

    #[inline(always)]
    fn run<V: F32s>(self, v: V) {
        let scale = v.splat(self.scores.scale);
        for i in 0..self.n_rows {
            let seen = self.scores.visible(self.first + i, self.n);
            let (p, p_hidden) = self.p[i * self.ld..][..self.n].split_at_mut(seen);
            let (ds, ds_hidden) = self.ds[i * self.ld..][..self.n].split_at_mut(seen);
            p_hidden.fill(0.0);
            ds_hidden.fill(0.0);
            let max = reduce(v, Max { x: p });
            if self.scores.mask.is_some() && max == f32::NEG_INFINITY {
                p.fill(0.0);
                ds.fill(0.0);
                continue;
            }
            exp_in_place(v, p, max);
            let norm = v.splat(1.0 / reduce(v, Sum { x: p }));
            let dot = v.splat(reduce(v, Dot { x: p, y: ds })) * norm;
            let mut j = 0;
            while j < seen {
                let n = (seen - j).min(V::LANES);
                // SAFETY: `j + n <= seen`, the length of both; the vector at hand proves its instructions.
                unsafe {
                    let (p, ds) = (p.as_mut_ptr().add(j), ds.as_mut_ptr().add(j));
                    let weight = V::load_n(p, n, 0.0) * norm;
                    weight.store_n(p, n);
                    (scale * weight * (V::load_n(ds, n, 0.0) - dot)).store_n(ds, n);
                }
                j += n;
            }
        }
    }
}
