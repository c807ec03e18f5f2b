//! The deterministic simulator: the real state machines under a network and clocks that misbehave.
//!
//! A [`Schedule`] is drawn from a seed: the size of the cluster, its consistency, how bad the network is,
//! and what crashes, pauses, is cut off, comes or goes at which moment. [`run`] plays it and checks the
//! invariants of [`check`] all along. The same schedule always gives the same run. A schedule that breaks
//! a promise is made smaller by [`minimise`] and printed; the printed text is a schedule that can be played again.

pub mod check;
mod election;
mod program;
mod schedule;
mod text;
mod world;

pub use check::Violation;
pub use schedule::{Draw, Fault, Node, Schedule, What};
pub use text::BadLine;
pub use world::Outcome;

use crate::mechanisms::Mechanisms;

/// Plays a schedule.
///
/// ```
/// use thalweg_cluster::simulate::{Schedule, run};
/// let outcome = run(&Schedule::new(1), Default::default()).expect("no promise is broken");
/// assert!(outcome.events > 100);
/// ```
pub fn run(schedule: &Schedule, mechanisms: Mechanisms) -> Result<Outcome, Violation> {
    world::World::new(schedule, mechanisms).run()
}

/// The smallest schedule found that still breaks the same promise: without the faults, the loss and the
/// repetition that it does not need, and with as few clocks.
pub fn minimise(schedule: &Schedule, mechanisms: Mechanisms) -> Schedule {
    let mut smallest = schedule.clone();
    let invariant = |s: &Schedule| run(s, mechanisms).err().map(|violation| violation.invariant);
    let broken = invariant(schedule);
    let fails = |s: &Schedule| broken.is_some() && invariant(s) == broken;
    loop {
        let all: Vec<usize> = (0..smallest.faults.len()).collect();
        let without = |i: usize| all.iter().copied().filter(|j| *j != i).collect::<Vec<_>>();
        let mut candidates: Vec<Schedule> = all.iter().map(|i| smallest.keeping(&without(*i))).collect();
        candidates.push(Schedule { loss: 0, ..smallest.clone() });
        candidates.push(Schedule { twice: 0, ..smallest.clone() });
        candidates.push(Schedule { slow: 0, ..smallest.clone() });
        candidates.push(Schedule { clocks: smallest.clocks.saturating_sub(1).max(1), ..smallest.clone() });
        candidates.push(Schedule { n_shards: 1, ..smallest.clone() });
        let smaller = candidates.into_iter().find(|c| *c != smallest && fails(c));
        match smaller {
            Some(schedule) => smallest = schedule,
            None => return smallest,
        }
    }
}
