//! Tensor files: npy, npz and safetensors, read without trust and written atomically.
//!
//! Needs nothing but dtypes, shapes and buffers. A bad file is an `Err` that lists every reason at
//! once; it never panics, and memory is asked for only once the bytes that fill it are there. What is
//! written replaces the old file in one step or not at all.
//!
//! Refuses pickles, structured dtypes, strings and complex numbers, and the dtypes that
//! [`DType`](thalweg_core::DType) does not have; the error names the cast that helps.
//!
//! # Mapped files
//!
//! [`safetensors::open`] and [`npy::open`] lend the tensors from a memory-mapped file, and the `read`
//! functions map the file while they copy from it. **A file must not change while it is mapped**: a
//! write would change tensors behind the program's back, and a truncation ends the process with a bus
//! error. Replacing the file by a rename is safe, since the mapping keeps the old contents; all `write`
//! functions of this crate work that way, so saving over an opened checkpoint is fine. (Windows refuses to
//! replace a mapped file; that is an error, and the old file stays.)

mod error;
mod map;
pub mod npy;
pub mod npz;
mod replace;
pub mod safetensors;
#[cfg(test)]
mod samples;
mod stored;

pub use error::{Action, Format, FormatError, Part, Problem};
pub use replace::replace;
pub use stored::{Dense, Stored};
