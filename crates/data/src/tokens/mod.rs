//! Text as numbers: by character, or by byte pairs.

mod bpe;
mod chars;

pub use bpe::Bpe;
pub use chars::Chars;
