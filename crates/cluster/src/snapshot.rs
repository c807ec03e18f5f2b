//! Snapshots at a clock boundary, without stopping anybody.
//!
//! A snapshot at clock `c` holds every push below `c` and none above. When the first push at or above
//! `c` comes while some below are still missing, the tables fork: from then on the fork gets only what
//! lies below the cut. Values are shared until they change, so a fork costs what changes meanwhile.

use std::collections::BTreeMap;

use crate::ids::Clock;
use crate::state::{Snapshot, Tables};

/// Workers may drift apart without bound in async mode; snapshots that would need more forks than
/// this are left out.
const MAX_FORKS: usize = 2;

/// The cuts under way.
#[derive(Debug, Clone)]
pub struct Cuts {
    every: Option<Clock>,
    done: Clock,                    // the last cut that was completed or left out
    forks: BTreeMap<Clock, Tables>, // by cut
    skipped: Clock,                 // no fork is begun at or below
}

impl Cuts {
    /// Cuts at the multiples of `every` above `clock`.
    pub fn new(every: Option<Clock>, clock: Clock) -> Self {
        Self { every: every.filter(|n| *n > 0), done: clock, forks: BTreeMap::new(), skipped: clock }
    }

    /// For a copy that begins in the middle: cuts that pushes have crossed already are left out.
    pub fn resumed(every: Option<Clock>, version: Clock, furthest: Clock) -> Self {
        Self { skipped: furthest, ..Self::new(every, version) }
    }

    /// To be called before a push at `clock` is applied: forks the tables at the cuts that it crosses.
    pub fn before(&mut self, clock: Clock, tables: &Tables) {
        let Some(every) = self.every else { return };
        let cut = clock / every * every;
        if cut <= self.skipped || self.forks.contains_key(&cut) {
            return;
        }
        if self.forks.len() < MAX_FORKS {
            self.forks.insert(cut, tables.clone());
        }
        self.skipped = cut;
    }

    /// Applies a push at `clock` also to the forks whose cut lies above it.
    pub fn beside(&mut self, clock: Clock, mut update: impl FnMut(&mut Tables)) {
        self.forks.range_mut(clock + 1..).for_each(|(_, tables)| update(tables));
    }

    /// The snapshots that are whole once every push below `version` is in.
    pub fn completed(&mut self, version: Clock, tables: &Tables) -> Vec<Snapshot> {
        let Some(every) = self.every else { return Vec::new() };
        let mut done = Vec::new();
        let mut cut = (self.done / every + 1) * every;
        while cut <= version {
            match self.forks.remove(&cut) {
                Some(tables) => done.push(Snapshot { clock: cut, tables }),
                // Nothing at or above the cut has come, so the tables are the snapshot.
                None if self.skipped < cut => done.push(Snapshot { clock: cut, tables: tables.clone() }),
                None => {}
            }
            (self.done, self.skipped) = (cut, self.skipped.max(cut));
            cut += every;
        }
        done
    }
}
