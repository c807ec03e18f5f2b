//! Library functions: plain compositions of ops, by topic.

pub(crate) mod images;
