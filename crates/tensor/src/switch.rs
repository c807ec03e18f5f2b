//! Switches: what is decided while a function is traced.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::trace;

/// A yes or no that decides which ops a function applies, such as whether a layer is being trained. Clones
/// are the same switch. A compiled function remembers how the switches stood that it looked at, and is traced
/// again when one of them stands differently.
#[derive(Debug, Clone)]
pub struct Switch(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    on: AtomicBool,
    name: String,
}

impl Switch {
    /// A new one; whoever explains why a function is traced again calls it by this name.
    pub fn new(name: impl Into<String>, on: bool) -> Self {
        Self(Arc::new(Inner { on: AtomicBool::new(on), name: name.into() }))
    }

    /// The name it was given.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// How it stands.
    pub fn is_on(&self) -> bool {
        let on = self.0.on.load(Ordering::Relaxed);
        trace::looked_at(self, on);
        on
    }

    /// Turns it.
    pub fn turn(&self, on: bool) {
        self.0.on.store(on, Ordering::Relaxed);
    }

    pub(crate) fn is(&self, other: &Switch) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
