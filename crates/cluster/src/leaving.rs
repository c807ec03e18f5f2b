//! How a worker that was asked to go finishes the clock.
//!
//! Slots that are behind the furthest are brought up to it, and what was computed is waited for, but not for long. Whatever
//! is not answered then is computed again by whoever gets the slot, and applied once.
//!
//! The last worker has nobody to leave its slots to. It brings all of them to one clock, has every shard saved as it is
//! then, and so the run can go on from where it was stopped.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::cluster::Pulled;
use crate::ids::{Clock, Slot};

/// How long a worker that was asked to go waits for the answers to what it has computed.
const FINISH: Duration = Duration::from_millis(500);
/// How long the last one may take to bring its slots to one clock.
const SAVE: Duration = Duration::from_secs(60);

/// The slots of a worker, as far as it matters when it is asked to go.
#[derive(Default)]
pub(crate) struct Leaving {
    begun: BTreeMap<Slot, (Clock, bool)>, // clocks begun, and whether the last one is under way
    held: BTreeMap<Slot, (Clock, Pulled)>, // slots that stand, and what they have read
    asked: Option<Instant>,
    saving: bool,
}

impl Leaving {
    pub fn gained(&mut self, slot: Slot, clock: Clock) {
        self.dropped(slot);
        self.begun.insert(slot, (clock, false));
    }

    pub fn dropped(&mut self, slot: Slot) {
        self.begun.remove(&slot);
        self.held.remove(&slot);
        self.saving = false;
    }

    pub fn clear(&mut self) {
        *self = Self { asked: self.asked, ..Self::default() };
    }

    /// A slot has begun the step that leads to this clock.
    pub fn began(&mut self, slot: Slot, clock: Clock) {
        self.begun.insert(slot, (clock, true));
    }

    /// A slot stands at this clock, having read this.
    pub fn stands(&mut self, slot: Slot, clock: Clock, pulled: Pulled) {
        self.begun.insert(slot, (clock, false));
        self.held.insert(slot, (clock, pulled));
    }

    /// The worker was asked to go.
    pub fn ask(&mut self) {
        self.asked.get_or_insert_with(Instant::now);
    }

    /// Whether a slot at this clock makes one more step.
    pub fn goes_on(&self, clock: Clock) -> bool {
        self.asked.is_none() || clock < self.goal()
    }

    /// A slot that stands and is behind: others that came since were further.
    pub fn behind(&mut self) -> Option<(Slot, Clock, Pulled)> {
        let goal = self.goal();
        let slot = self.held.iter().find(|(_, (clock, _))| *clock < goal).map(|(slot, _)| *slot)?;
        let (clock, pulled) = self.held.remove(&slot)?;
        Some((slot, clock, pulled))
    }

    /// Whether a worker that others can replace may go.
    pub fn may_go(&self) -> bool {
        let goal = self.goal();
        let finished = self.begun.values().all(|(clock, busy)| *clock >= goal && !busy);
        finished || self.lasts() > FINISH
    }

    /// Whether even the last one has had time enough.
    pub fn is_late(&self) -> bool {
        self.lasts() > SAVE
    }

    /// The clock at which so many slots stand, once: from then on they are being saved.
    pub fn save(&mut self, n_slots: usize) -> Option<Clock> {
        let goal = self.goal();
        let stand = self.held.len() == n_slots && self.held.values().all(|(clock, _)| *clock == goal);
        (stand && !std::mem::replace(&mut self.saving, true)).then_some(goal)
    }

    /// Where the first slot stands and what it has read, when all shards have saved themselves.
    pub fn saved(&mut self) -> Option<(Clock, Pulled)> {
        if self.saving { self.held.remove(&Slot(0)) } else { None }
    }

    fn goal(&self) -> Clock {
        self.begun.values().map(|(clock, _)| *clock).max().unwrap_or(0)
    }

    fn lasts(&self) -> Duration {
        self.asked.map_or(Duration::ZERO, |since| since.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_saved_once_and_only_when_all_stand_at_one_clock() {
        let mut leaving = Leaving::default();
        leaving.ask();
        leaving.gained(Slot(0), 5);
        assert!(!leaving.goes_on(5) && leaving.goes_on(4));
        leaving.stands(Slot(0), 5, Pulled::new());
        assert_eq!(leaving.save(2), None, "the other slot is somebody else's");
        leaving.gained(Slot(1), 6);
        leaving.stands(Slot(1), 6, Pulled::new());
        assert_eq!(leaving.save(2), None, "one is behind");
        let (slot, clock, _) = leaving.behind().unwrap();
        assert_eq!((slot, clock), (Slot(0), 5));
        leaving.began(Slot(0), 6);
        assert!(leaving.save(2).is_none() && !leaving.may_go(), "it is under way");
        leaving.stands(Slot(0), 6, Pulled::new());
        assert_eq!((leaving.behind(), leaving.save(2), leaving.save(2)), (None, Some(6), None));
        assert_eq!(leaving.saved(), Some((6, Pulled::new())));
    }
}
