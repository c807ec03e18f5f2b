//! Where no machine code is made, block functions do everything.

use super::straight::Straight;

/// Most inputs and outputs of a loop.
pub(super) const MAX_POINTERS: usize = 0;

/// There is none.
pub(super) enum Code {}

/// Whether this machine runs what is made here.
pub(super) fn available() -> bool {
    false
}

/// Nothing fits.
pub(super) fn fits(_: &Straight) -> bool {
    false
}

impl Code {
    pub(super) fn new(_: &Straight) -> Option<Self> {
        None
    }

    /// # Safety
    /// Cannot be called.
    pub(super) unsafe fn run(&self, _: &[*mut f32], _: usize) {
        match *self {}
    }
}
