//! Functions that are a few ops each, by topic.

mod ordering;
mod padding;
mod picking;
mod pieces;
mod repeating;

pub use ordering::Unique;
pub use padding::Padding;
pub use picking::{Bag, Reduce};
