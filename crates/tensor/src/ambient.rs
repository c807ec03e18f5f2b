//! What is set around a piece of code and decides what it computes.

use std::cell::Cell;

use thalweg_core::DType;

use crate::tape;

thread_local! {
    static COMPUTE: Cell<Option<DType>> = const { Cell::new(None) };
}

/// How things stand around the running code. A compiled function remembers how they stood when it was traced, and is
/// traced again when they differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ambient {
    /// The dtype of products, where it is not that of the operands; see [`computing_in`].
    pub compute: Option<DType>,
    /// Whether gradients are recorded: not inside [`no_grad`](crate::no_grad).
    pub records: bool,
}

impl Ambient {
    /// On this thread, at this place.
    pub fn now() -> Self {
        Self { compute: COMPUTE.get(), records: tape::records(0) }
    }
}

/// Runs `f` with [`Ambient::compute`] set: layers then multiply in this dtype.
pub fn computing_in<R>(dtype: DType, f: impl FnOnce() -> R) -> R {
    struct Restore(Option<DType>);
    impl Drop for Restore {
        fn drop(&mut self) {
            COMPUTE.set(self.0);
        }
    }
    let _restore = Restore(COMPUTE.replace(Some(dtype)));
    f()
}
