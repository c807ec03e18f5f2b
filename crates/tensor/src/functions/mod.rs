//! Functions that are a few ops each, by topic.

mod activations;
pub(crate) mod attention;
pub(crate) mod classification;
pub(crate) mod ctc;
mod distances;
mod einsum;
mod elementary;
pub(crate) mod images;
mod linalg;
pub(crate) mod losses;
mod margins;
pub(crate) mod norms;
mod ordering;
mod padding;
mod picking;
mod pieces;
mod products;
pub(crate) mod recurrent;
mod reductions;
mod repeating;

pub use linalg::MatrixNorm;
pub use ordering::Unique;
pub use padding::PadMode;
pub use picking::{Bag, Reduce};
pub use products::AddmmOptions;
