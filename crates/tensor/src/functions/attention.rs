//! Attention, and the rotary encoding of positions.

use thalweg_core::{DType, Shape};

use crate::apply::run;
use crate::error::{InOp, OpError, fail, or_fail};
use crate::ops::{Attention, Number};
use crate::tensor::Tensor;

const OP: &str = "scaled_dot_product_attention";

/// The options of [`Tensor::scaled_dot_product_attention`].
#[derive(Clone, Default)]
pub struct AttentionOptions<'a> {
    /// Which keys each query may look at (`true`), or what is added to the scores; broadcasts to
    /// (…, queries, keys).
    pub mask: Option<&'a Tensor>,
    /// Whether query i looks only at keys 0 ..= i. With a mask, both must let it look.
    pub is_causal: bool,
    /// The factor of the scores; 1 / √width if `None`.
    pub scale: Option<f64>,
    /// Whether several heads of the query share one head of keys and values.
    pub enable_gqa: bool,
}

/// The weights and options of [`Tensor::multi_head_attention`].
#[derive(Clone)]
pub struct AttentionWeights<'a> {
    /// How many heads the width is cut into.
    pub heads: usize,
    /// (3 · width, width): the rows for queries, for keys, for values.
    pub in_weight: &'a Tensor,
    /// (3 · width).
    pub in_bias: Option<&'a Tensor>,
    /// (width, width).
    pub out_weight: &'a Tensor,
    /// (width).
    pub out_bias: Option<&'a Tensor>,
    /// As in [`AttentionOptions`].
    pub mask: Option<&'a Tensor>,
    /// As in [`AttentionOptions`].
    pub is_causal: bool,
}

impl Tensor {
    /// softmax(q kᵀ · scale + mask) v. self: (…, queries, width), key: (…, keys, width), value:
    /// (…, keys, out) → (…, queries, out). A query that may look at nothing gets zeros.
    ///
    /// In f32 and narrower, with a mask of `bool` or of the dtype of the query, memory is linear in the numbers of
    /// queries and keys, the gradients' as well. Only the gradient of the mask, where it is wanted, takes memory for
    /// all scores.
    ///
    /// ```
    /// use thalweg_core::DType;
    /// use thalweg_tensor::{AttentionOptions, Tensor};
    /// let (q, k) = (Tensor::zeros([1, 2, 3], DType::F32), Tensor::zeros([1, 2, 3], DType::F32));
    /// let v = Tensor::from([[[1.0f32], [3.0]]]);
    /// let causal = AttentionOptions { is_causal: true, ..Default::default() };
    /// assert_eq!(q.scaled_dot_product_attention(&k, &v, &causal).to_vec::<f32>(), [1.0, 2.0]);
    /// ```
    #[track_caller]
    pub fn scaled_dot_product_attention(
        &self,
        key: &Tensor,
        value: &Tensor,
        options: &AttentionOptions<'_>,
    ) -> Tensor {
        match fused(self, key, value, options) {
            Some(y) => y,
            None => attend(self, key, value, options).0,
        }
    }

    /// softmax(q kᵀ · scale + mask): how much of its attention each query pays to each key,
    /// (…, queries, keys). A query that may look at nothing pays none.
    #[track_caller]
    pub fn attention_weights(&self, key: &Tensor, options: &AttentionOptions<'_>) -> Tensor {
        weigh(self, key, options)
    }

    /// Self- or cross-attention with several heads and its projections. self: (queries, batch, width),
    /// key and value: (keys, batch, width). Returns the result, (queries, batch, width), and the
    /// attention averaged over the heads, (batch, queries, keys).
    #[track_caller]
    pub fn multi_head_attention(
        &self,
        key: &Tensor,
        value: &Tensor,
        weights: &AttentionWeights<'_>,
    ) -> (Tensor, Tensor) {
        let op = "multi_head_attention";
        let &[queries, batch, width] = &self.shape()[..] else {
            fail(OpError::Rank { op, want: "3 (queries, batch, width)", shape: self.shape().clone() });
        };
        if weights.heads == 0
            || !width.is_multiple_of(weights.heads)
            || weights.in_weight.shape()[..] != [3 * width, width]
        {
            let hint =
                "the input weight is (3 · width, width), and the width a multiple of the number of heads";
            fail(OpError::Shapes {
                op,
                left: self.shape().clone(),
                right: weights.in_weight.shape().clone(),
                hint,
            });
        }
        let project = |x: &Tensor, part: usize| {
            let w = weights.in_weight.narrow(0, part * width, width);
            let y = x.linear(&w, weights.in_bias.map(|b| b.narrow(0, part * width, width)).as_ref());
            // (length, batch, heads · d) → (batch, heads, length, d)
            y.reshape([x.size(0), batch, weights.heads, width / weights.heads]).permute([1, 2, 0, 3])
        };
        let (q, k, v) = (project(self, 0), project(key, 1), project(value, 2));
        let options =
            AttentionOptions { mask: weights.mask, is_causal: weights.is_causal, ..Default::default() };
        let (y, attention) = attend(&q, &k, &v, &options);
        let joined = y.permute([2, 0, 1, 3]).reshape([queries, batch, width]);
        (joined.linear(weights.out_weight, weights.out_bias), attention.mean(1))
    }

    /// Rotates pairs of elements by angles whose cosines and sines are given: the element i of the first
    /// half of the last axis pairs with the element i of the second half. cos, sin: (…, width / 2).
    #[track_caller]
    pub fn rotary(&self, cos: &Tensor, sin: &Tensor) -> Tensor {
        let width = self.size(-1);
        if !width.is_multiple_of(2) || cos.size(-1) != width / 2 || cos.shape() != sin.shape() {
            let hint = "cos and sin have half the width of the operand, which is even";
            fail(OpError::Shapes {
                op: "rotary",
                left: self.shape().clone(),
                right: cos.shape().clone(),
                hint,
            });
        }
        let (a, b) = (self.narrow(-1, 0, width / 2), self.narrow(-1, width / 2, width / 2));
        Tensor::concat(&[&a * cos - &b * sin, &b * cos + &a * sin], -1)
    }
}

/// The result by an op of its own, for the calls that it covers: in f32 or narrower, and a mask that is not wider.
#[track_caller]
fn fused(q: &Tensor, k: &Tensor, v: &Tensor, options: &AttentionOptions<'_>) -> Option<Tensor> {
    let narrow = matches!(q.dtype(), DType::F32 | DType::F16 | DType::BF16);
    if !narrow || [k, v].iter().any(|x| x.dtype() != q.dtype() || x.rank() < 2) {
        return None;
    }
    if q.rank() < 2 || q.size(-1) != k.size(-1) || k.size(-2) != v.size(-2) {
        return None;
    }
    if options.mask.is_some_and(|mask| mask.dtype() != DType::Bool && mask.dtype() != q.dtype()) {
        return None;
    }
    let (k, v) = match options.enable_gqa {
        true => (shared_heads(OP, q, k), shared_heads(OP, q, v)),
        false => (k.clone(), v.clone()),
    };
    let lead = |x: &Tensor| Shape::from(&x.shape()[..x.rank() - 2]);
    let mut shape = or_fail(lead(q).broadcast(&lead(&k)).and_then(|s| s.broadcast(&lead(&v))).in_op(OP));
    let mut spread_mask = None;
    if let Some(mask) = options.mask {
        let scores: Shape = shape.iter().copied().chain([q.size(-2), k.size(-2)]).collect();
        let all = or_fail(scores.broadcast(mask.shape()).in_op(OP));
        // A mask that spreads the queries or keys themselves is none of this op's.
        if all[all.rank() - 2..] != scores[scores.rank() - 2..] {
            return None;
        }
        let ones = vec![1; all.rank() - mask.rank()];
        let full: Shape = ones.into_iter().chain(mask.shape().iter().copied()).collect();
        spread_mask = Some(mask.reshape(full));
        shape = Shape::from(&all[..all.rank() - 2]);
    }
    let spread = |x: &Tensor| {
        let full: Shape = shape.iter().chain(&x.shape()[x.rank() - 2..]).copied().collect();
        x.broadcast_to(full)
    };
    let scale = Number(options.scale.unwrap_or(1.0 / (q.size(-1) as f64).sqrt()));
    let operands: Vec<Tensor> = [spread(q), spread(&k), spread(&v)].into_iter().chain(spread_mask).collect();
    let op = Attention { scale, causal: options.is_causal };
    Some(run(op, &operands.iter().collect::<Vec<_>>()))
}

/// The result and the attention of each query to each key.
#[track_caller]
pub(crate) fn attend(q: &Tensor, k: &Tensor, v: &Tensor, options: &AttentionOptions<'_>) -> (Tensor, Tensor) {
    if v.rank() < 2 {
        fail(OpError::Rank { op: OP, want: "at least 2 (length, width)", shape: v.shape().clone() });
    }
    if k.rank() >= 2 && k.size(-2) != v.size(-2) {
        let hint = "there must be as many keys as values (second to last axis)";
        fail(OpError::Shapes { op: OP, left: k.shape().clone(), right: v.shape().clone(), hint });
    }
    let attention = weigh(q, k, options);
    let v = if options.enable_gqa { shared_heads(OP, q, v) } else { v.clone() };
    (attention.matmul(&v), attention)
}

/// The attention of each query to each key.
#[track_caller]
fn weigh(q: &Tensor, k: &Tensor, options: &AttentionOptions<'_>) -> Tensor {
    for t in [q, k] {
        if t.rank() < 2 {
            fail(OpError::Rank { op: OP, want: "at least 2 (length, width)", shape: t.shape().clone() });
        }
    }
    if q.size(-1) != k.size(-1) {
        let hint = "queries and keys must have the same width (last axis)";
        fail(OpError::Shapes { op: OP, left: q.shape().clone(), right: k.shape().clone(), hint });
    }
    let k = if options.enable_gqa { shared_heads(OP, q, k) } else { k.clone() };
    let scale = options.scale.unwrap_or(1.0 / (q.size(-1) as f64).sqrt());
    let mut scores = (q * scale).matmul(&k.t());
    if options.is_causal {
        let (rows, cols) = (Tensor::arange(q.size(-2)).unsqueeze(1), Tensor::arange(k.size(-2)));
        scores = cols.le(&rows).where_(&scores, f64::NEG_INFINITY);
    }
    match options.mask {
        Some(seen) if seen.dtype() == DType::Bool => scores = seen.where_(&scores, f64::NEG_INFINITY),
        Some(added) => scores = scores + added,
        None => {}
    }
    // Each query of a causal mask sees the first key at least.
    if options.mask.is_none() || k.size(-2) == 0 {
        return scores.softmax(-1);
    }
    // A row of only −∞ would be NaN and its gradient too: such a row looks everywhere, and its result is dropped.
    let sees_some = scores.amax_keepdim(-1).ne(f64::NEG_INFINITY);
    sees_some.where_(&sees_some.where_(&scores, 0.0).softmax(-1), 0.0)
}

/// Heads of keys or values (third to last axis) repeated until there are as many as of queries.
#[track_caller]
fn shared_heads(op: &'static str, q: &Tensor, k: &Tensor) -> Tensor {
    let bad = |hint| fail(OpError::Shapes { op, left: q.shape().clone(), right: k.shape().clone(), hint });
    if q.rank() < 3 || k.rank() < 3 {
        bad("shared heads need an axis of heads (third to last)");
    }
    let (heads, shared) = (q.size(-3), k.size(-3));
    if shared == 0 || !heads.is_multiple_of(shared) {
        bad("the heads of queries (third to last axis) must be a multiple of those of keys and values");
    }
    let lead = k.rank() - 3;
    let repeated: Shape = k.shape()[..=lead]
        .iter()
        .copied()
        .chain([heads / shared])
        .chain(k.shape()[lead + 1..].iter().copied())
        .collect();
    let joined: Shape = k.shape().with(lead, heads);
    k.unsqueeze(lead as isize + 1).broadcast_to(repeated).reshape(joined)
}

#[cfg(test)]
mod tests {
    use super::AttentionOptions;
    use crate::{Tensor, vjp};

    #[test]
    fn a_query_that_sees_nothing_gets_zeros_and_a_finite_gradient() {
        let x = Tensor::from([[0.5f32, -1.0], [2.0, 0.25]]);
        let mask = Tensor::from([[true, false], [false, false]]);
        let attend = |x: &Tensor| {
            let options = AttentionOptions { mask: Some(&mask), ..Default::default() };
            x.scaled_dot_product_attention(x, x, &options)
        };
        let (y, pull) = vjp(|x| vec![attend(&x[0])], std::slice::from_ref(&x));
        assert_eq!(y[0].to_vec::<f32>(), [0.5, -1.0, 0.0, 0.0]);
        let dx = pull.call(&[Tensor::from([[1.0f32, 1.0], [1.0, 1.0]])]).unwrap().remove(0).unwrap();
        assert_eq!(dx.to_vec::<f32>(), [1.0, 1.0, 0.0, 0.0]);
    }
}
