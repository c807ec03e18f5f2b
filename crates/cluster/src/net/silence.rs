//! Who is silent: servers that say nothing and that nobody can replace. Whoever could be replaced has lost its place by then.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::config::Config;
use super::life::is_closed;
use super::waits::TOLD;
use crate::ids::{Peer, ServerId};
use crate::message::Time;
use crate::say::say;
use crate::view::View;

/// What the coordinator knows of silence.
///
/// A server whose connection has ended and whose port is closed has ended itself, and with it what it held: nothing is waited
/// for then.
pub(super) struct Silent {
    patience: Duration,
    bearable: Duration,
    give_up: Duration,
    heard: BTreeMap<Peer, Time>,
    told: BTreeSet<Peer>,
    /// Whether the port of one that has no connection any more is closed, as soon as that is known.
    closed: BTreeMap<Peer, Arc<AtomicBool>>,
    connected: BTreeSet<Peer>,
    looked: Time,
}

impl Silent {
    pub fn new(config: &Config) -> Self {
        let patience = config.timing.patience();
        let bearable = TOLD.max(patience * 3 / 2);
        let give_up = config.give_up.max(2 * patience);
        let (heard, told, closed) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
        let connected = BTreeSet::new();
        Self { patience, bearable, give_up, heard, told, closed, connected, looked: Time::ZERO }
    }

    /// Who has a connection.
    pub fn connected(&mut self, to: BTreeSet<Peer>) {
        self.connected = to;
    }

    /// Whether people were told that it is silent.
    pub fn has_told(&self, peer: Peer) -> bool {
        self.told.contains(&peer)
    }

    /// Takes note of a sign of life.
    pub fn hear(&mut self, from: Peer, now: Time) {
        self.heard.insert(from, now);
        self.told.remove(&from);
        self.closed.remove(&from);
    }

    /// Tells of those that are silent for long, and finds those that were so for too long.
    pub fn look(&mut self, view: &View, now: Time) -> Vec<ServerId> {
        // Who was stopped itself has not listened; and without workers nobody waits.
        let listened = now.saturating_sub(self.looked) < self.bearable && !view.workers.is_empty();
        self.looked = now;
        let known = |peer: &Peer| matches!(peer, Peer::Server(id) if view.servers.contains_key(id));
        self.heard.retain(|peer, _| known(peer));
        self.told.retain(known);
        self.closed.retain(|peer, _| known(peer));
        let mut gone = Vec::new();
        for (id, member) in &view.servers {
            let peer = Peer::Server(*id);
            let heard = self.heard.entry(peer).or_insert(now);
            if !listened {
                *heard = now;
            }
            let silence = now.saturating_sub(*heard);
            let (name, limit) = (&member.name, self.give_up.as_secs_f32());
            if silence > self.bearable && self.told.insert(peer) {
                let has = "which is silent and has shards that nobody else has";
                say("coordinator", format_args!("waits for {name}, {has}; for {limit} s at most"));
            }
            let has_ended = silence > self.patience && !self.connected.contains(&peer) && {
                let closed = self.closed.entry(peer).or_insert_with(|| is_closed(&member.address));
                closed.load(Ordering::Relaxed)
            };
            if has_ended {
                say("coordinator", format_args!("{name} has ended; its shards are lost"));
                gone.push(*id);
            } else if silence > self.give_up {
                say("coordinator", format_args!("{name} was silent for {limit} s; its shards are lost"));
                gone.push(*id);
            }
        }
        gone
    }
}
