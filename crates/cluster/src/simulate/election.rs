//! What simulated coordinators share: the memory of the newest view, and the election of who may write it. This is what
//! etcd does for real ones, and like etcd it is taken to be right; what goes wrong is on the way to it.

use crate::coordinator::Durable;

/// Who leads is replaced when nothing was heard of it for so long, in microseconds of true time.
pub const LEASE: u64 = 300_000;

/// The number of an election.
pub type Term = u64;

pub struct Store {
    durable: Durable,
    term: Term,
    until: u64, // the leader's lease; over when nobody leads
    fencing: bool,
}

impl Store {
    /// Nobody leads yet. Without fencing anybody may write.
    pub fn new(durable: Durable, fencing: bool) -> Self {
        Self { durable, term: 0, until: 0, fencing }
    }

    /// What was stored last.
    pub fn durable(&self) -> &Durable {
        &self.durable
    }

    /// The term that begins now, unless another one lasts.
    pub fn campaign(&mut self, now: u64) -> Option<Term> {
        if now < self.until {
            return None;
        }
        (self.term, self.until) = (self.term + 1, now + LEASE);
        Some(self.term)
    }

    /// Whether this term lasts, and if so for another lease.
    pub fn keep_alive(&mut self, term: Term, now: u64) -> bool {
        let lasts = term == self.term && now < self.until;
        if lasts {
            self.until = now + LEASE;
        }
        lasts
    }

    /// Stores what the leader of this term must remember. Refused when the term is over.
    pub fn write(&mut self, term: Term, durable: &Durable, now: u64) -> bool {
        let refused = self.fencing && (term != self.term || now >= self.until);
        if !refused {
            self.durable = durable.clone();
        }
        !refused
    }

    /// Stores this whoever leads, and ends their term.
    pub fn replace(&mut self, durable: Durable) {
        (self.durable, self.until) = (durable, 0);
        self.term += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::{Coordinator, Size};
    use crate::view::Timing;

    #[test]
    fn who_was_deposed_cannot_write() {
        let size = Size { n_servers: 1, n_workers: 1, n_shards: Some(1), n_slots: 1, replicas: 1 };
        let durable =
            |after| Coordinator::new(size.clone(), Timing::default(), None, after).durable().clone();
        let first = durable(None);
        let second = durable(Some(&first));
        for fencing in [true, false] {
            let mut store = Store::new(first.clone(), fencing);
            let old = store.campaign(0).unwrap();
            assert_eq!(store.campaign(LEASE - 1), None);
            assert!(store.keep_alive(old, LEASE - 1));
            let new = store.campaign(2 * LEASE - 1).unwrap();
            assert!(!store.keep_alive(old, 2 * LEASE));
            assert!(store.write(new, &first, 2 * LEASE));
            assert_eq!(store.write(old, &second, 2 * LEASE), !fencing);
            assert_eq!(*store.durable() == second, !fencing);
        }
    }
}
