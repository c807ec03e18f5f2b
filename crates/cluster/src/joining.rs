//! Who may take part: a process that computes what the others compute, under a name that nobody alive has.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::coordinator::Size;
use crate::error::Unwelcome;
use crate::ids::Peer;
use crate::message::{Settings, Time};

/// The first setting, by name, in which a process differs from the run.
pub(crate) fn difference(run: &Settings, own: &Settings) -> Option<Unwelcome> {
    let names: BTreeSet<&String> = run.keys().chain(own.keys()).collect();
    let setting = names.into_iter().find(|name| run.get(*name) != own.get(*name))?;
    let [run, own] = [run, own].map(|settings| settings.get(setting).cloned());
    Some(Unwelcome::Differs { setting: setting.clone(), run, own })
}

/// The same with what the coordinator itself knows of the run. It knows no program, and who says nothing is not asked.
pub(crate) fn difference_in_size(size: &Size, own: &Settings) -> Option<Unwelcome> {
    let said = size.settings().into_iter().filter(|(name, _)| own.contains_key(name));
    let (run, own): (Settings, Settings) =
        said.map(|(name, value)| ((name.clone(), value), (name.clone(), own[&name].clone()))).unzip();
    difference(&run, &own)
}

impl Size {
    /// What of it decides the mathematics, in words.
    pub(crate) fn settings(&self) -> Settings {
        let shards = self.n_shards.map(|n| ("shards", n));
        let others = [("slots", self.n_slots), ("replicas", self.replicas)];
        others.into_iter().chain(shards).map(|(name, n)| (name.to_owned(), n.to_string())).collect()
    }
}

/// What is known of whoever has a name that somebody asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holder {
    /// It has ended.
    Ended,
    /// It lives.
    Lives,
    /// One of the two; the newcomer asks again.
    Unknown,
}

/// Newcomers that ask for the name of a member, by their random number, and since when.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    asked: BTreeMap<u64, [Time; 2]>, // first and last
    parted: BTreeSet<Peer>,          // members whose connection has ended, and that were not heard of since
}

impl Claims {
    /// The connection to this peer has ended, and with it, most likely, its process.
    pub fn part(&mut self, peer: Peer) {
        self.parted.insert(peer);
    }

    /// A sign of life.
    pub fn hear(&mut self, peer: Peer) {
        self.parted.remove(&peer);
    }

    /// Whether the member lives whose name this newcomer wants. What was on its way when it ended has come by the time that
    /// a silent member is borne; who is heard of after that lives.
    pub fn judge(
        &mut self,
        nonce: u64,
        holder: Peer,
        heard: Option<Time>,
        patience: Duration,
        now: Time,
    ) -> Holder {
        let [first, last] = self.asked.entry(nonce).or_insert([now, now]);
        *last = now;
        match heard {
            Some(heard) if heard > *first + patience => Holder::Lives,
            Some(heard) if heard + patience > now && !self.parted.contains(&holder) => Holder::Unknown,
            _ => Holder::Ended,
        }
    }

    /// Forgets newcomers that do not ask any more, and members that are none.
    pub fn forget(&mut self, is_member: impl Fn(&Peer) -> bool, patience: Duration, now: Time) {
        self.asked.retain(|_, [_, last]| *last + 2 * patience > now);
        self.parted.retain(is_member);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::SessionId;

    const MS: fn(u64) -> Time = Time::from_millis;
    const PATIENCE: Duration = Duration::from_millis(360);
    const HOLDER: Peer = Peer::Worker(SessionId(1));

    fn settings(said: &[(&str, &str)]) -> Settings {
        said.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    #[test]
    fn a_difference_names_the_setting_and_both_values() {
        let run = settings(&[("codec", "f32"), ("sync", "bsp")]);
        assert_eq!(difference(&run, &run), None);
        let other = difference(&run, &settings(&[("codec", "f32"), ("sync", "async")])).unwrap().to_string();
        assert!(other.starts_with("join: sync is bsp in the run and async in this process"), "{other}");
        let more = settings(&[("codec", "f32"), ("recipe", "mlp"), ("sync", "bsp")]);
        let more = difference(&run, &more).unwrap().to_string();
        assert!(more.starts_with("join: recipe is nothing in the run and mlp in this process"), "{more}");
    }

    #[test]
    fn the_coordinators_own_numbers_are_compared_with_those_that_are_said() {
        let size = Size { n_servers: 1, n_workers: 1, n_shards: None, n_slots: 2, replicas: 2 };
        assert_eq!(difference_in_size(&size, &settings(&[("sync", "bsp"), ("slots", "2")])), None);
        let why = difference_in_size(&size, &settings(&[("slots", "3")])).unwrap().to_string();
        assert!(why.starts_with("join: slots is 2 in the run and 3 in this process"), "{why}");
    }

    #[test]
    fn a_name_is_free_when_its_holder_is_silent_or_its_connection_has_ended() {
        let mut claims = Claims::default();
        assert_eq!(claims.judge(7, HOLDER, Some(MS(90)), PATIENCE, MS(100)), Holder::Unknown);
        // What it sent before it ended may come late.
        assert_eq!(claims.judge(7, HOLDER, Some(MS(150)), PATIENCE, MS(160)), Holder::Unknown);
        assert_eq!(claims.judge(7, HOLDER, Some(MS(150)), PATIENCE, MS(510)), Holder::Ended);
        assert_eq!(claims.judge(7, HOLDER, Some(MS(470)), PATIENCE, MS(480)), Holder::Lives);
        claims.part(HOLDER);
        assert_eq!(claims.judge(8, HOLDER, Some(MS(470)), PATIENCE, MS(480)), Holder::Ended);
        claims.hear(HOLDER);
        assert_eq!(claims.judge(8, HOLDER, Some(MS(490)), PATIENCE, MS(500)), Holder::Unknown);
        claims.forget(|_| true, PATIENCE, MS(10_000));
        assert_eq!(claims.judge(8, HOLDER, Some(MS(9_990)), PATIENCE, MS(10_000)), Holder::Unknown, "anew");
    }
}
