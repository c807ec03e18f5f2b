//! Functions that are said with ops: plain methods of [`crate::Tensor`], differentiable because the ops are.

mod einsum;
mod linalg;
mod products;
mod reductions;

pub use linalg::MatrixNorm;
pub use products::AddmmOptions;
