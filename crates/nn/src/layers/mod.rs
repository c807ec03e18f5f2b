//! The layers. Weights have PyTorch's shapes and order, so that its files load after a renaming.

mod activation;
mod attention;
mod batch_norm;
mod container;
mod conv;
mod dropout;
mod embedding;
mod linear;
mod norm;
mod pool;
mod recurrent;
mod rotary;
mod transformer;

pub use activation::{Activation, PRelu};
pub use attention::{AttentionConfig, AttentionMask, MultiHeadAttention};
pub use batch_norm::BatchNorm;
pub use container::{Flatten, Residual, Sequential};
pub use conv::{
    Conv, Conv1d, Conv2d, Conv3d, ConvTranspose, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d,
};
pub use dropout::Dropout;
pub use embedding::{Embedding, LearnedPositions};
pub use linear::Linear;
pub use norm::{GroupNorm, InstanceNorm, LayerNorm, RmsNorm};
pub use pool::{
    AdaptiveAvgPool, AdaptiveAvgPool1d, AdaptiveAvgPool2d, AdaptiveAvgPool3d, AdaptiveMaxPool,
    AdaptiveMaxPool1d, AdaptiveMaxPool2d, AdaptiveMaxPool3d, AvgPool, AvgPool1d, AvgPool2d, AvgPool3d,
    MaxPool, MaxPool1d, MaxPool2d, MaxPool3d,
};
pub use recurrent::{Cell, Gru, Lstm, RecurrentOptions, Rnn};
pub use rotary::Rotary;
pub use transformer::{Mlp, NormOrder, TransformerBlock, TransformerConfig};
