//! Functions that are said with a few ops: plain methods of [`crate::Tensor`], by topic.

mod activations;
mod elementary;
