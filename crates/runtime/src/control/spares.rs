//! Things that several threads may need at once, and that are kept to be used again.

use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, PoisonError};

/// As many as were ever in use at the same time. Nobody waits for another's: where none is left a new one is made, so that two
/// threads that run one graph do not take turns, and warm runs make none.
pub(super) struct Spares<T>(Mutex<Vec<Box<T>>>);

impl<T> Default for Spares<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Spares<T> {
    pub fn take(&self, make: impl FnOnce() -> T) -> Taken<'_, T> {
        let spare = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop();
        Taken { thing: Some(spare.unwrap_or_else(|| Box::new(make()))), home: self }
    }
}

/// One in use; it goes back when this is dropped.
pub(super) struct Taken<'a, T> {
    thing: Option<Box<T>>,
    home: &'a Spares<T>,
}

impl<T> Deref for Taken<'_, T> {
    type Target = T;
    fn deref(&self) -> &T {
        self.thing.as_ref().expect("there until it is dropped")
    }
}

impl<T> DerefMut for Taken<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        self.thing.as_mut().expect("there until it is dropped")
    }
}

impl<T> Drop for Taken<'_, T> {
    /// Also after a panic: what a run left half-way, the next one fills anew.
    fn drop(&mut self) {
        self.home.0.lock().unwrap_or_else(PoisonError::into_inner).extend(self.thing.take());
    }
}
