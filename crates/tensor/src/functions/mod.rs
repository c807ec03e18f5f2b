//! Library functions: plain compositions of ops, by topic.

pub(crate) mod attention;
pub(crate) mod classification;
pub(crate) mod ctc;
mod distances;
pub(crate) mod images;
pub(crate) mod losses;
pub(crate) mod norms;
pub(crate) mod recurrent;
