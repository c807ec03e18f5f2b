//! Dtypes, shapes, layouts and buffers: the ground every other Thalweg crate stands on.
//!
//! Knows no op. A [`Buffer`] is a typed, aligned, pooled block of memory; a [`Layout`] says how a
//! shape is laid over it; [`View`] and [`ViewMut`] lend both to a kernel.

pub mod buffer;
pub mod dtype;
pub mod layout;
mod pool;
pub mod runs;
pub mod shape;
pub mod view;

pub use buffer::{Buffer, Span, SpanMut};
pub use dtype::{DType, Element};
pub use layout::Layout;
pub use pool::{PoolStats, pool_stats, trim_pool};
pub use shape::{Shape, ShapeError};
pub use view::{View, ViewMut};
