//! What the coordinator was last told by every process, and what follows from it for people: how far each has come, what it
//! does, and whom a round waits for.

use std::collections::BTreeMap;
use std::time::Duration;

use super::waits::TOLD;
use crate::ids::{Clock, Peer};
use crate::message::{Activity, Behind, Counts, Heartbeat, Role, Time};
use crate::report::{Progress, Standing, seconds};
use crate::view::{Member, View};

/// The least time over which a speed is measured anew.
const MEASURED: Duration = Duration::from_millis(500);
/// Where workers come and go under ever new names, those that went are not told of for ever.
const MISSED: Duration = Duration::from_secs(3600);

/// What one process has told.
pub(super) struct Told {
    who: Member, // for when it is one no more
    waiting_for: String,
    pub clock: Clock,
    pub counts: Counts,
    behind: Option<Behind>,
    activity: Activity,
    pub at: Time,
    since: (Time, Clock), // for the speed
}

/// What all have told.
#[derive(Default)]
pub(super) struct AllTold {
    members: BTreeMap<Peer, Told>,
    missing: Vec<(Role, Told)>, // who has lost its place by silence
}

impl AllTold {
    /// Takes note of a member's sign of life.
    pub fn hear(&mut self, view: &View, from: Peer, heartbeat: &Heartbeat, now: Time) {
        let Some(who) = view.member(from).cloned() else { return };
        let Heartbeat { waiting_for, clock, counts, behind, activity, .. } = heartbeat.clone();
        // A process that goes on from a checkpoint learns of its clock after its first words.
        let before = self.members.get(&from).filter(|told| told.clock > 0);
        let since = before.map_or((now, clock), |told| told.since);
        self.members.insert(from, Told { who, waiting_for, clock, counts, behind, activity, at: now, since });
    }

    /// Forgets one that has left.
    pub fn forget(&mut self, peer: Peer) {
        self.members.remove(&peer);
    }

    pub fn get(&self, peer: Peer) -> Option<&Told> {
        self.members.get(&peer)
    }

    /// Forgets whoever is no member any more. Who has been silent for longer than is borne is missed until one of its name
    /// comes back; returns those that are missed from now on, with their silence, as far as anybody minds.
    pub fn retain(&mut self, view: &View, borne: Duration, now: Time) -> Vec<(String, String)> {
        let mut missed = Vec::new();
        let gone = self.members.extract_if(.., |peer, _| view.member(*peer).is_none());
        for (peer, told) in gone.filter(|(_, told)| now.saturating_sub(told.at) >= borne) {
            let role = if matches!(peer, Peer::Server(_)) { Role::Server } else { Role::Worker };
            self.missing.retain(|(r, before)| (*r, &before.who.name) != (role, &told.who.name));
            // When the workers are done, servers go without a word.
            if role == Role::Worker || !view.workers.is_empty() {
                missed.push((told.who.name.clone(), seconds(now.saturating_sub(told.at))));
            }
            self.missing.push((role, told));
        }
        self.missing.retain(|(role, told)| {
            now.saturating_sub(told.at) < MISSED && view.named(*role, &told.who.name).is_none()
        });
        missed
    }

    /// Who has lost its place by saying nothing, and is not back.
    pub fn missing(&self, view: &View, now: Time) -> impl Iterator<Item = Standing> {
        let missing = self.missing.iter().filter(|(role, told)| view.named(*role, &told.who.name).is_none());
        missing.map(move |(role, told)| {
            let Member { name, host, .. } = told.who.clone();
            let silence = now.saturating_sub(told.at);
            let told = Progress {
                clock: told.clock,
                speed: 0.0,
                counts: told.counts,
                silence,
                waiting_for: format!("not heard of for {}, and has lost its place", seconds(silence)),
                activity: Activity::default(),
            };
            Standing { name, role: *role, host, holds: None, told: Some(told) }
        })
    }

    /// How far a process has come. The speed is that since the last time.
    pub fn progress(&mut self, view: &View, peer: Peer, now: Time) -> Option<Progress> {
        let held = self.held(view, peer, now);
        let told = self.members.get_mut(&peer)?;
        let (since, clock) = told.since;
        let passed = now.saturating_sub(since);
        // Over a moment a speed is noise: several may ask.
        if passed >= MEASURED {
            told.since = (now, told.clock);
        }
        let passed = passed.as_secs_f32().max(1e-3);
        let silence = now.saturating_sub(told.at);
        let own = (!told.waiting_for.is_empty()).then(|| format!("waits for {}", told.waiting_for));
        let waiting_for = match (held, own) {
            (Some(held), Some(own)) if matches!(peer, Peer::Server(_)) => format!("{held}; {own}"),
            (Some(waits), _) | (None, Some(waits)) => waits,
            (None, None) => String::new(),
        };
        Some(Progress {
            clock: told.clock,
            speed: told.clock.saturating_sub(clock) as f32 / passed,
            counts: told.counts,
            silence,
            waiting_for,
            activity: told.activity.lasting(silence),
        })
    }

    /// Who holds up the round that a process waits for: of a server, its own round; of a worker whose calls are not answered,
    /// the one that is furthest behind, unless that worker itself holds it up.
    pub fn held(&self, view: &View, peer: Peer, now: Time) -> Option<String> {
        let told = self.get(peer)?;
        let behind = match peer {
            Peer::Server(_) => told.behind?,
            Peer::Worker(id) if told.activity.what.is_empty() && !told.waiting_for.is_empty() => {
                let rounds = view.servers.keys().filter_map(|id| self.get(Peer::Server(*id))?.behind);
                rounds.min_by_key(|b| b.clock).filter(|b| view.owner(b.slot) != Some(id))?
            }
            _ => return None,
        };
        // What it has pushed meanwhile is on its way: both have spoken at different times.
        let owner = view.owner(behind.slot).and_then(|id| self.get(Peer::Worker(id)));
        let waits = owner.is_none_or(|told| told.clock <= behind.clock);
        waits.then(|| self.sentence(view, behind, now))
    }

    fn sentence(&self, view: &View, behind: Behind, now: Time) -> String {
        let Behind { clock, slot } = behind;
        let owner = view.owner(slot).and_then(|id| Some((id, view.workers.get(&id)?)));
        let Some((id, member)) = owner else {
            return format!("round {clock} waits for {slot}, which nobody has yet");
        };
        let mut text = format!("round {clock} waits for {} on host {}", member.name, member.host);
        let Some(told) = self.get(Peer::Worker(id)) else { return text + ", not heard of yet" };
        let silence = now.saturating_sub(told.at);
        let activity = told.activity.lasting(silence);
        if !activity.what.is_empty() {
            text += &format!(", {activity}");
        } else if !told.waiting_for.is_empty() {
            text += &format!(", which waits for {}", told.waiting_for);
        }
        if silence > TOLD {
            text += &format!(", not heard of for {}", seconds(silence));
        }
        text
    }
}

impl Activity {
    /// What is done so much later, as far as is known: still the same.
    fn lasting(&self, longer: Duration) -> Self {
        let lasts = if self.what.is_empty() { self.lasts } else { self.lasts + longer };
        Self { lasts, ..self.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{Epoch, ServerId, SessionId, Slot};
    use crate::message::Wish;

    const S: fn(u64) -> Time = Time::from_secs;

    fn heartbeat(what: &str, waiting_for: &str, behind: Option<Behind>) -> Heartbeat {
        Heartbeat {
            epoch: Epoch(1),
            sent: S(0),
            caught_up: Vec::new(),
            wish: Wish::Stay,
            waiting_for: waiting_for.into(),
            clock: 812,
            counts: Counts::default(),
            saved: None,
            behind,
            activity: Activity { what: what.into(), lasts: S(4), usual: Duration::from_millis(1100) },
            keeps: false,
            handed: Vec::new(),
        }
    }

    #[test]
    fn who_waits_is_told_whom_the_round_waits_for_and_what_that_one_does() {
        let member = |name: &str| Member { name: name.into(), host: "b3".into(), ..Member::default() };
        let (near, far, head) = (SessionId(1), SessionId(2), ServerId(3));
        let view = View {
            servers: [(head, member("server-0"))].into(),
            workers: [(near, member("worker-0")), (far, member("worker-7"))].into(),
            slots: vec![Some(near), Some(far)],
            ..View::default()
        };
        let mut told = AllTold::default();
        let behind = Some(Behind { clock: 812, slot: Slot(1) });
        told.hear(&view, Peer::Server(head), &heartbeat("", "", behind), S(9));
        told.hear(&view, Peer::Worker(near), &heartbeat("", "shard 0 of server-0", None), S(9));
        told.hear(&view, Peer::Worker(far), &heartbeat("backward", "", None), S(9));
        let mut words = |peer, now| {
            let told = told.progress(&view, peer, now).unwrap();
            (told.waiting_for, told.activity.to_string())
        };
        let round = "round 812 waits for worker-7 on host b3, in backward for 4.0 s, usually 1.1 s";
        for waits in [Peer::Server(head), Peer::Worker(near)] {
            assert_eq!(words(waits, S(9)).0, round);
        }
        assert_eq!(
            words(Peer::Worker(far), S(9)),
            (String::new(), "in backward for 4.0 s, usually 1.1 s".into())
        );
        // Without a round that waits, it says itself what it waits for.
        told.hear(&view, Peer::Server(head), &heartbeat("", "", None), S(9));
        let alone = told.progress(&view, Peer::Worker(near), S(9)).unwrap().waiting_for;
        assert_eq!(alone, "waits for shard 0 of server-0");
        told.hear(&view, Peer::Server(head), &heartbeat("", "", behind), S(9));
        let beyond = Heartbeat { clock: 813, ..heartbeat("", "shard 0 of server-0", None) };
        told.hear(&view, Peer::Worker(far), &beyond, S(9));
        let of_server = told.progress(&view, Peer::Server(head), S(9)).unwrap().waiting_for;
        assert_eq!(of_server, "", "it has pushed meanwhile");
        told.hear(&view, Peer::Worker(far), &heartbeat("backward", "", None), S(9));
        let mut words = |peer, now| told.progress(&view, peer, now).unwrap().waiting_for;
        // It has said nothing since: what it did then it does still, as far as anybody knows.
        let later = "round 812 waits for worker-7 on host b3, in backward for 7.0 s, usually 1.1 s, not heard of for 3.0 s";
        assert_eq!(words(Peer::Worker(near), S(12)), later);
    }

    #[test]
    fn a_worker_that_is_silent_for_too_long_is_missed_until_it_comes_back() {
        let member = |name: &str| Member { name: name.into(), ..Member::default() };
        let view = |workers: &[(u64, &str)]| View {
            workers: workers.iter().map(|(id, name)| (SessionId(*id), member(name))).collect(),
            ..View::default()
        };
        let mut told = AllTold::default();
        let all = view(&[(1, "worker-0"), (2, "worker-1"), (3, "worker-2")]);
        for (id, at) in [(1, 10), (2, 3), (3, 9)] {
            told.hear(&all, Peer::Worker(SessionId(id)), &heartbeat("backward", "", None), S(at));
        }
        // One has left, and one said nothing for too long.
        let one = view(&[(1, "worker-0")]);
        let told_of =
            |missed: Vec<(String, String)>| missed.into_iter().map(|(name, _)| name).collect::<Vec<_>>();
        assert_eq!(told_of(told.retain(&one, S(2), S(10))), ["worker-1"]);
        let missing =
            |told: &AllTold, now| told.missing(&one, now).map(|m| m.to_string()).collect::<Vec<_>>();
        let lost = "worker-1: not heard of for 9.0 s, and has lost its place";
        assert_eq!(missing(&told, S(12)), [lost]);
        told.retain(&one, S(2), S(12));
        assert_eq!(missing(&told, S(12)), [lost]);
        assert!(told.get(Peer::Worker(SessionId(1))).is_some());
        let back = view(&[(1, "worker-0"), (4, "worker-1")]);
        assert_eq!(told.missing(&back, S(12)).count(), 0);
        told.retain(&back, S(2), S(12));
        assert_eq!(missing(&told, S(12)), [""; 0]);
        told.hear(&back, Peer::Worker(SessionId(4)), &heartbeat("backward", "", None), S(12));
        told.retain(&one, S(2), S(20));
        assert_eq!(missing(&told, S(21)), [lost]);
        told.retain(&one, S(2), S(5000));
        assert_eq!(missing(&told, S(5000)), [""; 0], "not for ever");
        told.hear(&back, Peer::Worker(SessionId(4)), &heartbeat("backward", "", None), S(5000));
        told.retain(&back, S(2), S(5000));
        told.forget(Peer::Worker(SessionId(4)));
        told.retain(&one, S(2), S(5010));
        assert_eq!(missing(&told, S(5010)), [""; 0], "it has left, and that took long");
    }
}
