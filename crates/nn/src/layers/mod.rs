//! The layers. Weights have PyTorch's shapes and order, so that its files load after a renaming.

mod activation;
mod container;
mod dropout;
mod linear;

pub use activation::{Activation, PRelu};
pub use container::{Flatten, Residual, Sequential};
pub use dropout::Dropout;
pub use linear::Linear;
