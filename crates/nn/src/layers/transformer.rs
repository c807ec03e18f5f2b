//! Transformer blocks.

use thalweg_derive::Module;
use thalweg_tensor::{Rng, Tensor};

use super::activation::Activation;
use super::attention::{AttentionConfig, AttentionMask, MultiHeadAttention};
use super::dropout::Dropout;
use super::linear::Linear;
use super::norm::LayerNorm;
use crate::module::Layer;
use crate::summary::Frame;

/// Where the norms of a block stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum NormOrder {
    /// Before each part, so that the residual way is free of them: trains without warm-up.
    #[default]
    Before,
    /// After each sum, as in the first paper and in PyTorch unless told otherwise.
    After,
}

/// The options of [`TransformerBlock`].
#[derive(Debug, Clone)]
pub struct TransformerConfig {
    /// How tokens look at each other.
    pub attention: AttentionConfig,
    /// The width between the two dense layers; four times the width if `None`.
    pub hidden: Option<usize>,
    /// Between the two dense layers.
    pub activation: Activation,
    /// What is dropped before each sum, in training.
    pub dropout: f64,
    /// Where the norms stand.
    pub order: NormOrder,
    /// Whether the block also looks at a second sequence.
    pub cross_attention: bool,
}

impl TransformerConfig {
    /// An encoder block.
    pub fn new(width: usize, heads: usize) -> Self {
        Self {
            attention: AttentionConfig::new(width, heads),
            hidden: None,
            activation: Activation::Gelu,
            dropout: 0.0,
            order: NormOrder::Before,
            cross_attention: false,
        }
    }

    /// A block that looks only backwards, as in GPT.
    pub fn causal(width: usize, heads: usize) -> Self {
        let mut config = Self::new(width, heads);
        config.attention.causal = true;
        config
    }
}

/// Two dense layers with an activation between them.
#[derive(Debug, Module)]
pub struct Mlp {
    /// (hidden, width).
    pub up: Linear,
    /// (width, hidden).
    pub down: Linear,
    activation: Activation,
}

impl Mlp {
    /// With or without summands.
    pub fn new(width: usize, hidden: usize, activation: Activation, bias: bool, rng: &mut Rng) -> Self {
        let dense = |i, o, rng: &mut Rng| match bias {
            true => Linear::new(i, o, rng),
            false => Linear::without_bias(i, o, rng),
        };
        Self { up: dense(width, hidden, rng), down: dense(hidden, width, rng), activation }
    }
}

impl Layer for Mlp {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let frame = Frame::open();
        frame.close(self, self.down.forward(&self.activation.forward(&self.up.forward(x))))
    }
}

/// Attention to a second sequence, with its norm.
#[derive(Debug, Module)]
struct Cross {
    norm: LayerNorm,
    attention: MultiHeadAttention,
}

/// Attention, perhaps attention to a second sequence, and a dense part, each added to its input, over
/// (batch, time, width).
///
/// ```
/// use thalweg_nn::{Layer, TransformerBlock, TransformerConfig};
/// use thalweg_tensor::{Rng, Tensor};
/// let block = TransformerBlock::new(TransformerConfig::causal(16, 2), &mut Rng::seed(0));
/// let x = Tensor::from([[[0.5f32; 16]; 6]; 2]);
/// assert_eq!(block.forward(&x).shape()[..], [2, 6, 16]);
/// ```
#[derive(Debug, Module)]
pub struct TransformerBlock {
    /// Of the attention.
    pub norm1: LayerNorm,
    /// How tokens look at each other.
    pub attention: MultiHeadAttention,
    cross: Option<Cross>,
    /// Of the dense part.
    pub norm2: LayerNorm,
    /// The dense part.
    pub mlp: Mlp,
    dropout: Dropout,
    #[module(skip)]
    order: NormOrder,
    causal: bool,
}

impl TransformerBlock {
    /// Summands are left out everywhere where the attention's are.
    #[track_caller]
    pub fn new(config: TransformerConfig, rng: &mut Rng) -> Self {
        let (width, bias) = (config.attention.width, config.attention.bias);
        let norm = || if bias { LayerNorm::new(width) } else { LayerNorm::new(width).without_bias() };
        let cross = config.cross_attention.then(|| {
            let plain = AttentionConfig { causal: false, rotary: None, ..config.attention.clone() };
            Cross { norm: norm(), attention: MultiHeadAttention::new(plain, rng) }
        });
        let hidden = config.hidden.unwrap_or(4 * width);
        Self {
            causal: config.attention.causal,
            attention: MultiHeadAttention::new(config.attention, rng),
            cross,
            mlp: Mlp::new(width, hidden, config.activation, bias, rng),
            norm1: norm(),
            norm2: norm(),
            dropout: Dropout::new(config.dropout, rng),
            order: config.order,
        }
    }

    /// With masks of one's own; that of the sequence itself is used as it is. `context` is the second
    /// sequence and its mask. Panics when it is missing in a block that was made for one, or the other way
    /// round.
    #[track_caller]
    pub fn run(
        &self,
        x: &Tensor,
        mask: AttentionMask<'_>,
        context: Option<(&Tensor, AttentionMask<'_>)>,
    ) -> Tensor {
        let frame = Frame::open();
        let attend = |x: &Tensor| self.attention.attend(x, x, mask);
        let mut x = self.added(x, &self.norm1, &attend);
        match (&self.cross, context) {
            (Some(cross), Some((context, mask))) => {
                let attend = |x: &Tensor| cross.attention.attend(x, context, mask);
                x = self.added(&x, &cross.norm, &attend);
            }
            (None, None) => {}
            (Some(_), None) => panic!("transformer: a block with cross-attention needs a second sequence"),
            (None, Some(_)) => panic!("transformer: a second sequence needs `cross_attention` in the config"),
        }
        let dense = |x: &Tensor| self.mlp.forward(x);
        frame.close(self, self.added(&x, &self.norm2, &dense))
    }

    /// x + part(norm(x)), or norm(x + part(x)).
    #[track_caller]
    fn added(&self, x: &Tensor, norm: &LayerNorm, part: &dyn Fn(&Tensor) -> Tensor) -> Tensor {
        match self.order {
            NormOrder::Before => x + self.dropout.forward(&part(&norm.forward(x))),
            NormOrder::After => norm.forward(&(x + self.dropout.forward(&part(x)))),
        }
    }
}

impl Layer for TransformerBlock {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        self.run(x, AttentionMask { causal: self.causal, ..AttentionMask::default() }, None)
    }
}
