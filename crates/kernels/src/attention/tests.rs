use super::{Gradients, Heads, Mask, MaskValues, Scores, attention, attention_backward, head_at};
use crate::rows::testing::{close, same_on_threads, values};

/// Sizes of one call: heads as (batch, heads), queries, keys, width, out.
type Sizes = ((usize, usize), usize, usize, usize, usize);

const CALLS: [Sizes; 8] = [
    ((1, 1), 1, 1, 1, 1),
    ((2, 3), 5, 7, 4, 3),
    ((1, 2), 64, 64, 32, 32),
    ((1, 1), 130, 300, 17, 9),
    ((2, 1), 300, 130, 8, 20),
    ((1, 1), 97, 289, 64, 64),
    ((1, 2), 3, 0, 4, 5),
    ((1, 2), 0, 3, 4, 5),
];

/// Operands as views of (batch, rows, heads, cols), the way a projection leaves them.
struct Operand {
    data: Vec<f32>,
    lead: [(usize, usize); 2],
    rows: usize,
    cols: usize,
}

impl Operand {
    fn new((batch, heads): (usize, usize), rows: usize, cols: usize, seed: u32) -> Self {
        let data = values(batch * rows * heads * cols, seed).iter().map(|x| x / 2.0).collect();
        Self { data, lead: [(batch, rows * heads * cols), (heads, cols)], rows, cols }
    }

    fn view(&self) -> Heads<'_> {
        Heads::new(&self.data, &self.lead, (self.rows, self.cols), self.lead[1].0 * self.cols)
    }

    /// The element in f64.
    fn at(&self, head: usize, row: usize, col: usize) -> f64 {
        let [(_, by_batch), (heads, by_head)] = self.lead;
        let at = head / heads * by_batch + head % heads * by_head + row * heads * self.cols + col;
        f64::from(self.data[at])
    }
}

fn operands(&(lead, queries, keys, width, out): &Sizes) -> [Operand; 4] {
    [(queries, width, 1), (keys, width, 2), (keys, out, 3), (queries, out, 4)]
        .map(|(rows, cols, seed)| Operand::new(lead, rows, cols, seed))
}

/// What a mask adds to the score of one query and one key.
fn added(mask: &Mask, head: usize, row: usize, key: usize) -> f64 {
    let at = head_at(mask.lead, head) + row * mask.row_stride + key * mask.col_stride;
    match mask.values {
        MaskValues::Seen(x) => [f64::NEG_INFINITY, 0.0][usize::from(x[at])],
        MaskValues::Added(x) => f64::from(x[at]),
    }
}

/// The weights of one query.
fn weights(q: &Operand, k: &Operand, head: usize, row: usize, scores: Scores) -> Vec<f64> {
    let n = scores.visible(row, k.rows);
    let dot = |key: usize| (0..q.cols).map(|c| q.at(head, row, c) * k.at(head, key, c)).sum::<f64>();
    let by_mask = |key: usize| scores.mask.map_or(0.0, |m| added(&m, head, row, key));
    let e: Vec<f64> = (0..n).map(|key| (dot(key) * f64::from(scores.scale) + by_mask(key)).exp()).collect();
    let sum: f64 = e.iter().sum();
    let sum = if sum == 0.0 { 1.0 } else { sum };
    e.iter().map(|e| e / sum).chain(std::iter::repeat_n(0.0, k.rows - n)).collect()
}

/// Without a mask, and with masks that all heads, all queries or all keys share, or none.
fn each_call(check: impl Fn(&Sizes, [Operand; 4], Scores)) {
    for (sizes, causal) in CALLS.iter().flat_map(|s| [(s, false), (s, true)]) {
        let &((batch, heads), queries, keys, ..) = sizes;
        let scores = Scores { scale: 0.3, causal, mask: None };
        check(sizes, operands(sizes), scores);
        let numbers = values(batch * heads * queries * keys + queries.max(keys), 7);
        // The second query sees nothing, and of the others' keys one in three is hidden.
        let seen: Vec<bool> = (0..numbers.len()).map(|i| i / keys.max(1) != 1 && i % 3 != 0).collect();
        let own = [(batch, heads * queries * keys), (heads, queries * keys)];
        let shared = [(batch, 0), (heads, 0)];
        let all = [
            (own, keys, 1),
            ([(batch, queries * keys), (heads, 0)], keys, 1),
            (shared, 0, 1),
            (shared, 1, 0),
            (shared, 1, queries),
        ];
        for (lead, row_stride, col_stride) in all {
            for values in [MaskValues::Seen(&seen), MaskValues::Added(&numbers)] {
                let mask = Some(Mask { values, lead: &lead, row_stride, col_stride });
                check(sizes, operands(sizes), Scores { mask, ..scores });
            }
        }
    }
}

#[test]
fn forward_agrees_with_f64() {
    each_call(|&((batch, heads), queries, _, _, out), [q, k, v, _], scores| {
        let got = same_on_threads(|| {
            let mut y = vec![f32::NAN; batch * heads * queries * out];
            attention(q.view(), k.view(), v.view(), scores, &mut y);
            y
        });
        let mut want = vec![];
        for (head, row) in (0..batch * heads).flat_map(|h| (0..queries).map(move |r| (h, r))) {
            let w = weights(&q, &k, head, row, scores);
            want.extend(
                (0..out).map(|c| w.iter().enumerate().map(|(i, w)| w * v.at(head, i, c)).sum::<f64>()),
            );
        }
        close(&got, &want, 1e-5);
    });
}

#[test]
fn backward_agrees_with_f64() {
    each_call(|&((batch, heads), queries, keys, width, out), [q, k, v, dy], scores| {
        let n_heads = batch * heads;
        let lens = [n_heads * queries * width, n_heads * keys * width, n_heads * keys * out];
        let got = same_on_threads(|| {
            let mut all = vec![f32::NAN; lens.iter().sum()];
            let [dq, dk, dv] = super::forward::cut(&mut all, lens);
            let to = Gradients { dq, dk, dv };
            attention_backward(q.view(), k.view(), v.view(), dy.view(), scores, to);
            all
        });
        let mut want = vec![0.0; got.len()];
        let (dq, rest) = want.split_at_mut(lens[0]);
        let (dk, dv) = rest.split_at_mut(lens[1]);
        for (head, row) in (0..n_heads).flat_map(|h| (0..queries).map(move |r| (h, r))) {
            let p = weights(&q, &k, head, row, scores);
            let dot = |key: usize| (0..out).map(|c| dy.at(head, row, c) * v.at(head, key, c)).sum::<f64>();
            let dp: Vec<f64> = (0..keys).map(dot).collect();
            let mean: f64 = p.iter().zip(&dp).map(|(p, dp)| p * dp).sum();
            for key in 0..keys {
                let ds = p[key] * (dp[key] - mean) * f64::from(scores.scale);
                for c in 0..width {
                    dq[(head * queries + row) * width + c] += ds * k.at(head, key, c);
                    dk[(head * keys + key) * width + c] += ds * q.at(head, row, c);
                }
                (0..out).for_each(|c| dv[(head * keys + key) * out + c] += p[key] * dy.at(head, row, c));
            }
        }
        close(&got, &want, 2e-5);
    });
}

#[test]
fn a_block_of_scores_that_are_minus_infinity_counts_nothing() {
    // 200 keys in two blocks, of which the first overflows to −∞ and the second does not.
    let k: Vec<f32> = (0..200).map(|i| if i < 150 { f32::NEG_INFINITY } else { 0.0 }).collect();
    let v: Vec<f32> = (0..200).map(|i| if i < 150 { 7.0 } else { 2.0 }).collect();
    let (scores, mut y) = (Scores { scale: 1.0, causal: false, mask: None }, [0.0]);
    let column = |x| Heads::new(x, &[], (200, 1), 1);
    attention(Heads::new(&[1.0], &[], (1, 1), 1), column(&k), column(&v), scores, &mut y);
    assert_eq!(y, [2.0]);
}
