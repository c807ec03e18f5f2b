//! Functions that are a few ops each, by topic.

mod einsum;
mod linalg;
mod ordering;
mod padding;
mod picking;
mod pieces;
mod products;
mod reductions;
mod repeating;

pub use linalg::MatrixNorm;
pub use ordering::Unique;
pub use padding::Padding;
pub use picking::{Bag, Reduce};
pub use products::AddmmOptions;
