//! Arithmetic, conversion, transposition and splitting of slices.
//!
//! Arithmetic and conversion are blocks: they run on the calling thread, and [`split`] spreads them over
//! the pool. Loops are plain Rust that the compiler vectorises once for each instruction set; a product
//! and a sum are never contracted, so results do not depend on the set.

pub mod arithmetic;
pub mod convert;
pub mod split;
pub mod transpose;
pub mod whole;
