//! Whom a process waits for when something is wrong: told within a second, an error in the end.
//!
//! A wait for others who compute is no trouble, however long; `thalweg status` tells of it, and so does a worker that has
//! waited for some seconds. Trouble is a coordinator that says nothing, a server that is not reached, and servers that never
//! came. A process that has ended and that no other can replace is waited for as long as starting it again may take
//! (`THALWEG_RESTART_MS`), which is 0.4 s where nobody does; one of which nothing is known, for `THALWEG_GIVE_UP_MS`.

use std::time::Duration;

use super::config::Config;
use super::machine::Trouble;
use crate::error::ClusterError;
use crate::ids::Clock;
use crate::message::{Activity, FromMember, Message, Outgoing};
use crate::say::say;
use crate::view::View;

/// Trouble that has lasted for so long is told.
pub(crate) const TOLD: Duration = Duration::from_millis(800);
/// The coordinator has so much more time to find out that a server is dead than others have to reach it.
const LONGER: Duration = Duration::from_secs(1);
/// A wait for others who compute is told when it has lasted for so long.
const LONG: Duration = Duration::from_secs(5);
/// Shorter trouble is what every change of the view brings.
const PASSING: Duration = Duration::from_millis(200);

/// That the coordinator is not heard of.
#[derive(Debug, Clone, Default)]
pub(crate) struct Unheard {
    /// For how long.
    pub lasts: Duration,
    /// Why.
    pub problem: Option<String>,
    /// For how long nobody listens any more where it was heard of before, and nobody else is elected.
    pub ended: Option<Duration>,
}

/// That every server is gone, and the run would go on from a checkpoint.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Desertion {
    /// The checkpoint's.
    pub clock: Clock,
    /// For how long.
    pub lasts: Duration,
    /// Nobody listens any more where they were.
    pub ended: bool,
}

/// What is wrong, as far as a process knows.
#[derive(Debug, Default)]
pub(crate) struct Wrong {
    /// That the coordinator is not heard of.
    pub unheard: Unheard,
    /// Servers that are not reached, with their names.
    pub troubles: Vec<(String, Trouble)>,
    /// Anything else that is waited for, and since when.
    pub lacks: Option<(String, Duration)>,
    /// That every server is gone.
    pub deserted: Option<Desertion>,
    /// Who computes what is waited for, and is no trouble.
    pub held: Option<String>,
}

impl Unheard {
    /// Why, in words.
    fn reason(&self) -> String {
        self.problem.clone().unwrap_or_else(|| "it does not answer".into())
    }
}

/// What one process has told of its waits, and how long it waits.
pub(crate) struct Waits {
    name: String,
    give_up: Duration,
    restart: Duration,
    said: Option<String>,
    held: Option<String>, // the last of those that were said to be waited for
}

impl Waits {
    pub fn new(config: &Config) -> Self {
        let (give_up, restart) = (config.give_up, config.restart);
        Self { name: config.name.clone(), give_up, restart, said: None, held: None }
    }

    /// An error when the coordinator is not to be waited for any longer, or not for so long.
    pub fn bear(&self, unheard: &Unheard, at_most: Duration) -> Result<(), ClusterError> {
        let problem = || unheard.reason();
        match unheard.ended {
            Some(lasted) if lasted > self.restart.min(at_most) => {
                Err(ClusterError::Ended { lasted, problem: problem() })
            }
            None if unheard.lasts > self.give_up.min(at_most) => {
                Err(ClusterError::Unreachable { lasted: unheard.lasts, problem: problem() })
            }
            _ => Ok(()),
        }
    }

    /// Tells what has lasted for long, once; what has lasted for too long is an error.
    pub fn look(&mut self, wrong: &Wrong) -> Result<(), ClusterError> {
        self.bear(&wrong.unheard, Duration::MAX)?;
        let lasting = |t: &Trouble| t.since.elapsed();
        if let Some((name, t)) = wrong.troubles.iter().find(|(_, t)| lasting(t) > self.give_up + LONGER) {
            let (name, address, problem) = (name.clone(), t.address.clone(), t.problem.clone());
            return Err(ClusterError::NotReached { name, address, lasted: lasting(t), problem });
        }
        if let Some(Desertion { clock, lasts, ended }) = wrong.deserted
            && lasts > if ended { self.restart } else { self.give_up }
        {
            return Err(ClusterError::Deserted { clock, lasted: lasts });
        }
        let mut why = Vec::new();
        if wrong.unheard.lasts > TOLD {
            why.push(format!("the coordinator: {}", wrong.unheard.reason()));
        }
        let long = wrong.troubles.iter().filter(|(_, t)| lasting(t) > TOLD);
        why.extend(long.map(|(name, t)| format!("{name} at {}: {}", t.address, t.problem)));
        why.extend(wrong.lacks.iter().filter(|(_, since)| *since > TOLD).map(|(what, _)| what.clone()));
        self.say((!why.is_empty()).then(|| why.join("; ")));
        Ok(())
    }

    /// Tells who holds up the round that a worker has waited for so long, once for each that does.
    pub fn look_who_holds(&mut self, wrong: &Wrong, waited: Duration) {
        let Some(held) = wrong.held.as_ref().filter(|_| waited > LONG) else { return };
        let who = held.split(',').next();
        if self.held.as_deref() != who {
            say(&self.name, format_args!("waits for an answer: {held}"));
            self.held = who.map(str::to_owned);
        }
    }

    /// Tells whom this process waits for and why, unless that was the last it told, and when it does so no more.
    pub fn say(&mut self, why: Option<String>) {
        match &why {
            Some(why) if self.said.as_ref() != Some(why) => say(&self.name, format_args!("waits for {why}")),
            None if self.said.is_some() => say(&self.name, "goes on"),
            _ => {}
        }
        self.said = why;
    }
}

/// The names of servers that are not reached.
pub(crate) fn named(view: &View, troubles: Vec<Trouble>) -> Vec<(String, Trouble)> {
    let name = |t: &Trouble| view.member(t.peer).map(|m| m.name.clone());
    troubles.into_iter().filter_map(|t| Some((name(&t)?, t))).collect()
}

/// Adds to the signs of life among these messages what is done and what is wrong, so that `thalweg status` tells it.
pub(crate) fn told(
    mut out: Vec<Outgoing>,
    troubles: &[(String, Trouble)],
    lacks: &str,
    activity: &Activity,
) -> Vec<Outgoing> {
    for (_, message) in &mut out {
        let Message::FromMember(FromMember::Heartbeat(heartbeat)) = message else { continue };
        heartbeat.activity = activity.clone();
        let lasting = troubles.iter().filter(|(_, t)| t.since.elapsed() > PASSING);
        let lasting =
            lasting.map(|(name, t)| format!("{name}, which is not reached at {}: {}", t.address, t.problem));
        for what in lasting.chain((!lacks.is_empty()).then(|| lacks.to_owned())) {
            let text = &mut heartbeat.waiting_for;
            *text = if text.is_empty() { what } else { format!("{text}; {what}") };
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    fn waits(variables: &[(&str, &str)]) -> Waits {
        let common = [("THALWEG_ROLE", "worker"), ("THALWEG_COORDINATOR", "127.0.0.1:1")];
        let all = [&common[..], variables].concat();
        let get = |name: &str| all.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        Waits::new(&Config::from(get).unwrap())
    }

    fn unheard(lasts: u64, ended: Option<u64>) -> Unheard {
        Unheard { lasts: MS(lasts), problem: None, ended: ended.map(MS) }
    }

    #[test]
    fn a_coordinator_that_has_ended_is_not_waited_for_unless_somebody_starts_it_again() {
        let bear = |waits: &Waits, unheard: &Unheard| match waits.bear(unheard, Duration::MAX) {
            Ok(()) => "borne",
            Err(ClusterError::Ended { .. }) => "ended",
            Err(ClusterError::Unreachable { .. }) => "unreachable",
            Err(e) => panic!("{e}"),
        };
        let alone = waits(&[]);
        // A second has to be enough for all of it, of which a tenth is between two looks.
        assert_eq!(bear(&alone, &unheard(300, Some(300))), "borne");
        assert_eq!(bear(&alone, &unheard(450, Some(450))), "ended");
        // It was silent for long before, but the time to start it again begins with its end.
        assert_eq!(bear(&alone, &unheard(9000, Some(300))), "borne");
        assert_eq!(bear(&alone, &unheard(9900, None)), "borne");
        assert_eq!(bear(&alone, &unheard(10_100, None)), "unreachable");
        let started_again = waits(&[("THALWEG_RESTART_MS", "60000")]);
        assert_eq!(bear(&started_again, &unheard(59_000, Some(59_000))), "borne");
        assert_eq!(bear(&started_again, &unheard(61_000, Some(61_000))), "ended");
        let asked_to_go = alone.bear(&unheard(2100, None), MS(2000));
        assert!(matches!(asked_to_go, Err(ClusterError::Unreachable { .. })));
    }

    #[test]
    fn servers_that_are_gone_are_waited_for_if_they_live() {
        let mut waits = waits(&[]);
        let mut look = |lasts, ended| {
            let deserted = Some(Desertion { clock: 7, lasts: MS(lasts), ended });
            waits.look(&Wrong { deserted, ..Wrong::default() })
        };
        assert!(look(300, true).is_ok() && look(9900, false).is_ok());
        for (lasts, ended) in [(450, true), (10_100, false)] {
            assert!(matches!(look(lasts, ended), Err(ClusterError::Deserted { clock: 7, .. })));
        }
    }
}
