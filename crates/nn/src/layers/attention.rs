//! Attention with several heads.

use thalweg_core::DType;
use thalweg_derive::Module;
use thalweg_tensor::{AttentionOptions, Rng, Tensor};

use super::dropout::Dropout;
use super::linear::Linear;
use super::rotary::Rotary;
use crate::mixed;
use crate::module::Layer;
use crate::summary::Frame;

/// Which keys a query may look at.
#[derive(Clone, Copy, Default)]
pub struct AttentionMask<'a> {
    /// Only those at its own place or before. With more keys than queries, the last query stands at the
    /// last key.
    pub causal: bool,
    /// (batch, keys): `true` where a key is a token and `false` where it only pads.
    pub padding: Option<&'a Tensor>,
    /// Anything that broadcasts to (batch, heads, queries, keys): `true` where a query may look, or numbers
    /// that are added to the scores.
    pub scores: Option<&'a Tensor>,
}

impl AttentionMask<'_> {
    /// Causal and nothing else.
    pub fn causal() -> Self {
        Self { causal: true, ..Self::default() }
    }
}

/// The options of [`MultiHeadAttention`].
#[derive(Debug, Clone)]
pub struct AttentionConfig {
    /// The width of inputs and outputs.
    pub width: usize,
    /// How many heads the queries have.
    pub heads: usize,
    /// How many heads keys and values have, shared by groups of queries (Ainslie et al., 2023); as many as
    /// queries if `None`.
    pub kv_heads: Option<usize>,
    /// Whether projections have a summand.
    pub bias: bool,
    /// What is dropped of each query's attention, in training.
    pub dropout: f64,
    /// Whether [`Layer::forward`] is causal.
    pub causal: bool,
    /// Turns queries and keys by their positions.
    pub rotary: Option<Rotary>,
}

impl AttentionConfig {
    /// Plain attention with summands.
    pub fn new(width: usize, heads: usize) -> Self {
        Self { width, heads, kv_heads: None, bias: true, dropout: 0.0, causal: false, rotary: None }
    }
}

/// Attention with several heads (Vaswani et al., 2017) over (batch, time, width).
///
/// The projections of queries, keys and values are one layer, whose rows lie in this order: one large
/// product instead of three. PyTorch's `in_proj_weight` is `qkv.weight` and its `out_proj` is `out`.
///
/// ```
/// use thalweg_nn::{AttentionConfig, AttentionMask, Layer, MultiHeadAttention};
/// use thalweg_tensor::{Rng, Tensor};
/// // Eight heads of queries share two of keys and values.
/// let config = AttentionConfig { kv_heads: Some(2), ..AttentionConfig::new(32, 8) };
/// let attention = MultiHeadAttention::new(config, &mut Rng::seed(0));
/// let x = Tensor::from([[[0.1f32; 32]; 5]; 3]);
/// let padding = Tensor::from([[true, true, true, true, false]; 3]);
/// let y = attention.attend(&x, &x, AttentionMask { padding: Some(&padding), ..AttentionMask::causal() });
/// assert_eq!(y.shape()[..], [3, 5, 32]);
/// ```
#[derive(Debug, Module)]
pub struct MultiHeadAttention {
    /// (width + 2 · kv_heads · head, width).
    pub qkv: Linear,
    /// (width, width).
    pub out: Linear,
    dropout: Dropout,
    #[module(skip)]
    config: AttentionConfig,
}

impl MultiHeadAttention {
    /// Panics unless the width is a multiple of the heads, and these of the shared ones.
    #[track_caller]
    pub fn new(config: AttentionConfig, rng: &mut Rng) -> Self {
        let (width, heads) = (config.width, config.heads);
        let shared = config.kv_heads.unwrap_or(heads);
        assert!(
            heads > 0 && width.is_multiple_of(heads) && shared > 0 && heads.is_multiple_of(shared),
            "attention: the width {width} must be a multiple of {heads} heads, and these of {shared} shared ones"
        );
        let rows = width + 2 * shared * (width / heads);
        let dense = |i, o, rng: &mut Rng| match config.bias {
            true => Linear::new(i, o, rng),
            false => Linear::without_bias(i, o, rng),
        };
        let (qkv, out) = (dense(width, rows, rng), dense(width, width, rng));
        Self { qkv, out, dropout: Dropout::new(config.dropout, rng), config }
    }

    /// The queries of `x` look at the keys of `context`: `x` itself for self-attention, another sequence
    /// for cross-attention. Positions, where there are any, start at 0.
    #[track_caller]
    pub fn attend(&self, x: &Tensor, context: &Tensor, mask: AttentionMask<'_>) -> Tensor {
        let frame = Frame::open();
        let (q, k, v) = self.project(x, context);
        let y = self.weigh(&q, &k, &v, mask);
        frame.close(self, self.out.forward(&y))
    }

    fn shared(&self) -> usize {
        self.config.kv_heads.unwrap_or(self.config.heads)
    }

    /// (batch, heads, time, head) each.
    #[track_caller]
    fn project(&self, x: &Tensor, context: &Tensor) -> (Tensor, Tensor, Tensor) {
        let (width, heads, shared) = (self.config.width, self.config.heads, self.shared());
        let head = width / heads;
        let sizes = [width, shared * head, shared * head];
        let parts = if std::ptr::eq(x, context) {
            self.qkv.forward(x).split_sizes(&sizes, -1)
        } else {
            let (weight, bias) = (self.qkv.weight.get(), self.qkv.bias.as_ref().map(|b| b.get()));
            let rows = |x: &Tensor, start: usize, n: usize| {
                let bias = bias.as_ref().map(|b| mixed::narrow(&b.narrow(0, start, n)));
                mixed::narrow(x).linear(&mixed::narrow(&weight.narrow(0, start, n)), bias.as_ref())
            };
            let kv = rows(context, width, 2 * sizes[1]);
            std::iter::once(rows(x, 0, width)).chain(kv.split_sizes(&sizes[1..], -1)).collect()
        };
        let cut = |t: &Tensor, heads: usize| t.reshape([t.size(0), t.size(1), heads, head]).transpose(1, 2);
        let (q, k, v) = (cut(&parts[0], heads), cut(&parts[1], shared), cut(&parts[2], shared));
        match &self.config.rotary {
            Some(rotary) => (rotary.forward_from(&q, 0), rotary.forward_from(&k, 0), v),
            None => (q, k, v),
        }
    }

    /// (batch, time, width).
    #[track_caller]
    fn weigh(&self, q: &Tensor, k: &Tensor, v: &Tensor, mask: AttentionMask<'_>) -> Tensor {
        let (queries, keys) = (q.size(2), k.size(2));
        // Among as many keys as queries the op itself looks back only, without a mask in memory.
        let is_causal = mask.causal && queries == keys;
        let joined =
            joined(AttentionMask { causal: mask.causal && !is_causal, ..mask }, queries, keys, q.dtype());
        let options = AttentionOptions {
            mask: joined.as_ref(),
            is_causal,
            scale: None,
            enable_gqa: self.shared() != self.config.heads,
        };
        let (q, k, v) = (mixed::wide(q), mixed::wide(k), mixed::wide(v));
        let y = if self.dropout.is_active() {
            let v = v.repeat_interleave(self.config.heads / self.shared(), 1);
            self.dropout.forward(&q.attention_weights(&k, &options)).matmul(&v)
        } else {
            q.scaled_dot_product_attention(&k, &v, &options)
        };
        y.transpose(1, 2).reshape([q.size(0), queries, self.config.width])
    }
}

impl Layer for MultiHeadAttention {
    /// Self-attention, causal if the configuration says so.
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        self.attend(x, x, AttentionMask { causal: self.config.causal, ..AttentionMask::default() })
    }
}

/// All that forbids looking as one mask, broadcastable to (batch, heads, queries, keys).
#[track_caller]
fn joined(mask: AttentionMask<'_>, queries: usize, keys: usize, dtype: DType) -> Option<Tensor> {
    let mut allowed = mask.padding.map(|p| p.to_dtype(DType::Bool).unsqueeze(1).unsqueeze(1));
    let mut and = |new: Tensor| {
        let old = allowed.take();
        allowed = Some(old.map_or_else(|| new.clone(), |old| both(&old, &new)));
    };
    if mask.causal {
        let offset = keys as i64 - queries as i64;
        let (rows, cols) = (Tensor::arange(queries).unsqueeze(1), Tensor::arange(keys));
        and(cols.le(&(rows + offset)));
    }
    match mask.scores {
        Some(scores) if scores.dtype() == DType::Bool => and(scores.clone()),
        Some(scores) => {
            let blocked = |a: Tensor| a.where_(&Tensor::scalar(0.0), &Tensor::scalar(f64::NEG_INFINITY));
            let scores = scores.to_dtype(dtype);
            return Some(allowed.map_or_else(|| scores.clone(), |a| &scores + blocked(a).to_dtype(dtype)));
        }
        None => {}
    }
    allowed
}

/// Where two masks agree that looking is allowed.
#[track_caller]
fn both(a: &Tensor, b: &Tensor) -> Tensor {
    let shape = a.shape().broadcast(b.shape()).unwrap_or_else(|e| panic!("attention: masks do not fit: {e}"));
    a.broadcast_to(&shape).logical_and(&b.broadcast_to(&shape))
}

#[cfg(test)]
mod tests {
    use thalweg_core::DType;
    use thalweg_tensor::{Rng, Tensor};

    use super::{AttentionConfig, AttentionMask, MultiHeadAttention, joined};
    use crate::Module;

    fn layer(dropout: f64) -> MultiHeadAttention {
        MultiHeadAttention::new(AttentionConfig { dropout, ..AttentionConfig::new(8, 2) }, &mut Rng::seed(3))
    }

    fn close(a: &Tensor, b: &Tensor) {
        let error = (a - b).abs().amax(()).item::<f32>();
        assert!(error < 1e-5, "{error}");
    }

    #[test]
    fn the_last_query_stands_at_the_last_key() {
        let mask = joined(AttentionMask::causal(), 2, 4, DType::F32).unwrap();
        assert_eq!(mask.to_array::<[[bool; 4]; 2]>(), [[true, true, true, false], [true; 4]]);
    }

    #[test]
    fn masks_of_both_kinds_say_the_same() {
        let x = Rng::seed(1).normal([2, 3, 8], 0.0, 1.0);
        let layer = layer(0.0);
        let allowed = Tensor::from([[true, false, true], [true, true, false], [false, true, true]]);
        let numbers = allowed.where_(&Tensor::scalar(0.0), &Tensor::scalar(-1e30));
        let padding = Tensor::from([[true, true, true], [true, true, false]]);
        for padding in [None, Some(&padding)] {
            for causal in [false, true] {
                let with = |scores: &Tensor| {
                    layer.attend(&x, &x, AttentionMask { causal, padding, scores: Some(scores) })
                };
                // The third query of a causal mask may look at the second key, which is never padding here.
                close(&with(&allowed).narrow(1, 0, 2), &with(&numbers).narrow(1, 0, 2));
            }
        }
    }

    #[test]
    fn padding_changes_nothing_for_the_tokens_before_it() {
        let x = Rng::seed(1).normal([1, 5, 8], 0.0, 1.0);
        let padding = Tensor::from([[true, true, true, false, false]]);
        let layer = layer(0.0);
        let padded = layer.attend(&x, &x, AttentionMask { padding: Some(&padding), ..Default::default() });
        let short = x.narrow(1, 0, 3);
        close(&padded.narrow(1, 0, 3), &layer.attend(&short, &short, AttentionMask::default()));
    }

    #[test]
    fn dropped_attention_keeps_its_mean_and_stops_in_use() {
        let (noisy, plain) = (layer(0.4), layer(0.0));
        plain.state().iter().zip(noisy.state()).for_each(|(a, b)| b.param.set(a.param.get()));
        let x = Rng::seed(1).normal([1, 4, 8], 0.0, 0.5);
        let run = |layer: &MultiHeadAttention| layer.attend(&x, &x, AttentionMask::causal());
        let mean = (0..2000).map(|_| run(&noisy)).reduce(|a, b| a + b).unwrap() / 2000.0;
        let error = (mean - run(&plain)).abs().amax(()).item::<f32>();
        assert!(error < 0.05, "{error}");
        noisy.eval();
        close(&run(&noisy), &run(&plain));
    }
}
