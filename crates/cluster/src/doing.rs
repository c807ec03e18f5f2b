//! What a worker does now and how long that usually takes, told with its signs of life.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::message::Activity;

/// So many of the last times decide what is usual.
const MEMORY: u32 = 8;

/// The phases of a worker's step, for people to look at: a program that says in which one it is can be told apart from one
/// that hangs. A clone is the same.
#[derive(Debug, Clone, Default)]
pub struct Doing(Arc<Mutex<Phases>>);

#[derive(Debug, Default)]
struct Phases {
    now: Option<(&'static str, Instant)>,
    usual: BTreeMap<&'static str, Duration>,
}

impl Doing {
    /// A phase begins, and the one before ends.
    pub fn begin(&self, what: &'static str) {
        self.turn(Some(what), Instant::now());
    }

    /// Nothing is done any more: others are waited for.
    pub fn rest(&self) {
        self.turn(None, Instant::now());
    }

    /// What is done now.
    pub fn activity(&self) -> Activity {
        self.activity_at(Instant::now())
    }

    fn turn(&self, next: Option<&'static str>, now: Instant) {
        let mut phases = self.phases();
        if let Some((what, since)) = phases.now {
            let took = now.saturating_duration_since(since);
            let usual = phases.usual.entry(what).or_insert(took);
            *usual = (*usual * (MEMORY - 1) + took) / MEMORY;
        }
        phases.now = next.map(|what| (what, now));
    }

    fn activity_at(&self, now: Instant) -> Activity {
        let phases = self.phases();
        let Some((what, since)) = phases.now else { return Activity::default() };
        let usual = phases.usual.get(what).copied().unwrap_or_default();
        Activity { what: what.to_owned(), lasts: now.saturating_duration_since(since), usual }
    }

    fn phases(&self) -> MutexGuard<'_, Phases> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_known_by_how_long_it_usually_takes() {
        let (doing, start) = (Doing::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(doing.activity_at(at(0)), Activity::default());
        doing.turn(Some("backward"), at(0));
        assert_eq!(doing.activity_at(at(40)).usual, Duration::ZERO, "nothing is usual yet");
        doing.turn(Some("validation"), at(100));
        doing.turn(Some("backward"), at(900));
        let now = doing.activity_at(at(4900));
        assert_eq!(
            (now.what.as_str(), now.lasts.as_millis(), now.usual.as_millis()),
            ("backward", 4000, 100)
        );
        doing.turn(None, at(4900));
        assert_eq!(doing.activity_at(at(5000)), Activity::default(), "it waits");
        doing.turn(Some("backward"), at(5000));
        assert_eq!(doing.activity_at(at(5000)).usual.as_millis(), 587, "an eighth of the way there");
    }
}
