//! Sets of row numbers that one side of a connection has sent and the other has received.
//!
//! A step pushes to the rows that it pulled before, and epochs repeat: a set that went over a connection once
//! goes as its hash from then on. Both sides add the same sets in the same order and forget them by the same
//! rule, so whatever the sender refers to is there. A new connection begins with nothing, and what is sent again
//! over it is sent in full; a hash that is not there is no honest peer's and ends the connection.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use crate::table::mix;

/// Sets with fewer keys than this are not worth a hash.
const FEWEST: usize = 8;
/// So many keys are remembered per lane of a connection, 8 bytes each on either side.
const MOST: usize = 1 << 18;

/// What was sent last, by hash.
#[derive(Debug, Default)]
pub struct KeySets {
    by_hash: HashMap<u64, Arc<Vec<u64>>>,
    order: VecDeque<u64>, // as they were added
    n_keys: usize,
}

impl KeySets {
    /// The set with this hash, if it is remembered.
    pub fn find(&self, hash: u64) -> Option<&Arc<Vec<u64>>> {
        self.by_hash.get(&hash)
    }

    /// Remembers a set, and forgets the oldest ones when there are too many. Of two sets with one hash the
    /// first is remembered.
    pub fn add(&mut self, hash: u64, keys: &Arc<Vec<u64>>) {
        if !(FEWEST..=MOST).contains(&keys.len()) || self.by_hash.contains_key(&hash) {
            return;
        }
        self.by_hash.insert(hash, keys.clone());
        self.order.push_back(hash);
        self.n_keys += keys.len();
        while self.n_keys > MOST {
            let oldest = self.order.pop_front().expect("there are keys, so there are sets");
            self.n_keys -= self.by_hash.remove(&oldest).map_or(0, |keys| keys.len());
        }
    }
}

/// A number that depends on every key and on their order.
pub fn hash(keys: &[u64]) -> u64 {
    keys.iter().fold(keys.len() as u64, |h, key| mix(h ^ *key))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(first: u64, n: usize) -> Arc<Vec<u64>> {
        Arc::new((first..first + n as u64).collect())
    }

    #[test]
    fn the_oldest_sets_are_forgotten_first_and_memory_stays_bounded() {
        let mut sets = KeySets::default();
        for i in 0..20 {
            let keys = set(i, MOST / 4);
            sets.add(hash(&keys), &keys);
            assert!(sets.n_keys <= MOST && sets.by_hash.len() == sets.order.len());
        }
        let found: Vec<u64> = (0..20).filter(|i| sets.find(hash(&set(*i, MOST / 4))).is_some()).collect();
        assert_eq!(found, [16, 17, 18, 19]);
    }

    #[test]
    fn sets_too_small_or_too_large_are_not_kept() {
        let mut sets = KeySets::default();
        for keys in [set(0, 0), set(0, FEWEST - 1), set(0, MOST + 1)] {
            sets.add(hash(&keys), &keys);
        }
        assert_eq!((sets.n_keys, sets.order.len()), (0, 0));
    }

    #[test]
    fn the_hash_sees_order_and_length() {
        assert_ne!(hash(&[1, 2]), hash(&[2, 1]));
        assert_ne!(hash(&[0]), hash(&[0, 0]));
    }
}
