//! Where answers are received: the parts of a table that come from several shards land side by side, in the memory that the
//! whole will have. An answer that comes again, after a connection broke, finds no place and is received elsewhere; what is put together
//! is the same.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use crate::ids::{CallId, Slot};
use crate::values::Values;

/// Memory for the arrays of one answer, for those that have a place.
pub type Places = Vec<Option<Values>>;

/// The places of all answers that a worker waits for.
#[derive(Debug, Default)]
pub struct Landing(Mutex<BTreeMap<Slot, Expected>>);

/// A slot's calls, one per shard, are numbered one after the other.
#[derive(Debug)]
struct Expected {
    first: CallId,
    by_shard: Vec<Places>,
}

impl Landing {
    /// A slot begins calls, of which this is the first; what it asked for before does not come any more.
    pub fn expect(&self, slot: Slot, first: CallId, by_shard: Vec<Places>) {
        self.expected().insert(slot, Expected { first, by_shard });
    }

    /// A slot is somebody else's: whatever it asked for is not awaited here any more.
    pub fn forget(&self, slot: Slot) {
        self.expected().remove(&slot);
    }

    /// Memory for the arrays of an answer to this call: for each its place, if it has one that was not given to anybody before.
    pub fn take(&self, call: CallId, lens: &[usize]) -> Vec<Values> {
        let places = self.expected().values_mut().find_map(|expected| {
            let shard = usize::try_from(call.0.checked_sub(expected.first.0)?).ok()?;
            expected.by_shard.get_mut(shard).map(std::mem::take)
        });
        let mut places = places.unwrap_or_default();
        places.resize(lens.len(), None);
        let of = |(place, len): (Option<Values>, &usize)| {
            place.filter(|place| place.len() == *len).unwrap_or_else(|| Values::reserve(*len))
        };
        places.into_iter().zip(lens).map(of).collect()
    }

    fn expected(&self) -> MutexGuard<'_, BTreeMap<Slot, Expected>> {
        // Between any two changes it is whole, so a panicking holder leaves nothing half-done.
        self.0.lock().unwrap_or_else(|e| e.into_inner())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_lands_once_and_only_where_it_fits() {
        let landing = Landing::default();
        let parts = Values::side_by_side(&[16, 3]).unwrap();
        let at: Vec<*const f32> = parts.iter().map(|p| p.as_ptr()).collect();
        let by_shard = parts.into_iter().map(|part| vec![None, Some(part)]).collect();
        landing.expect(Slot(2), CallId(7), by_shard);
        let take = |call, lens: &[usize]| landing.take(CallId(call), lens);
        for call in [0, 6, 9, u64::MAX] {
            assert_eq!(take(call, &[16]).len(), 1, "nobody waits for {call}");
        }
        let first = take(7, &[5, 16]);
        assert_eq!((first[0].len(), first[1].as_ptr()), (5, at[0]));
        assert_ne!(take(7, &[5, 16])[1].as_ptr(), at[0], "it comes again");
        assert_ne!(take(8, &[5, 4])[1].as_ptr(), at[1], "it is longer than it should be");
        assert_eq!(take(8, &[]).len(), 0);
        landing.expect(Slot(2), CallId(9), vec![vec![Some(Values::scratch(3))]]);
        landing.forget(Slot(2));
        assert!(landing.expected().is_empty());
    }
}
