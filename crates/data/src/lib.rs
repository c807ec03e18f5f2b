//! Data sets, readers and loaders.
//!
//! A [`Dataset`] makes batches of any of its samples; [`Batches`] says in which order, and iterates.
//! The order is a function of seed and epoch, and the [`Position`] in it is one number that depends
//! neither on the number of threads that fetch nor on the number of ranks that share the work.
//!
//! Readers take files that may be gzipped. A broken record is an error that names file, line and
//! reason; [`OnError::Skip`] leaves it out, and the result says what was [`Skipped`].
//!
//! Knows no model.
//!
//! ```
//! use thalweg_data::Dataset;
//! let iris = thalweg_data::iris()?.data;
//! for epoch in 0..2 {
//!     for (x, y) in iris.batches(50).shuffled(epoch) {
//!         assert_eq!((x.shape().to_string(), y.shape().to_string()), ("[50, 4]".into(), "[50]".into()));
//!     }
//! }
//! # Ok::<(), thalweg_data::DataError>(())
//! ```

pub mod bag_of_words;
mod batches;
mod builtin;
pub mod csv;
mod dataset;
mod draw;
mod error;
mod examples;
pub mod fetch;
mod forest;
pub mod idx;
mod images;
pub mod libsvm;
mod order;
#[cfg(feature = "parquet")]
pub mod parquet;
mod prefetch;
pub mod ratings;
mod records;
mod rows;
mod sequences;
mod sparse;
mod table;
mod tokens;
mod transform;
pub mod trees;
mod windows;

pub use batches::{Batches, Last, Loader};
pub use builtin::{Labelled, Mnist, breast_cancer, diabetes, digits, iris, mnist, wine};
pub use dataset::{Dataset, FromFn, from_fn};
pub use draw::{Draw, DrawRng};
pub use error::{BadRecord, DataError, Place, Reason};
pub use examples::Examples;
pub use forest::Forest;
pub use images::{Channels, Image, ImageFolder, decode, encode_png};
pub use order::{Position, permutation};
pub use records::{OnError, Read, Skipped};
pub use sequences::{Padded, Sequences};
pub use sparse::{Csr, Sparse};
pub use table::{Column, Fill, Table, Values};
pub use tokens::{Bpe, Chars};
pub use transform::{Inputs, Normalize, RandomCrop, RandomFlip, Transform, Transformed};
pub use windows::Windows;
