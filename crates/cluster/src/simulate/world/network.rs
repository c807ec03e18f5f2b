//! The network: it loses, repeats and delays what the schedule says, and does not carry what it cuts.

use std::collections::BTreeSet;

use prost::Message as _;

use super::{HEALED, Happening, MS, Machine, World};
use crate::control::{self, proto};
use crate::ids::{Peer, ShardId};
use crate::message::{Data, Message, Outgoing};
use crate::simulate::schedule::{Node, What};
use crate::wire;

/// What a process still has to write to another: one thing after the other, each as long as it is large.
#[derive(Default)]
pub(super) struct Link {
    free_at: u64,
    states: Vec<(u64, ShardId)>, // whole states, and when they will have left
}

impl World {
    /// Puts messages on the network, which may lose, repeat and delay them.
    pub(super) fn send(&mut self, from: Node, out: Vec<Outgoing>) {
        let sender = match &self.processes[&from].machine {
            Machine::Coordinator(_) => Peer::Coordinator,
            Machine::Server(s) => s.id().map_or(Peer::Newcomer(self.processes[&from].life), Peer::Server),
            Machine::Worker(s, _) => s.id().map_or(Peer::Newcomer(self.processes[&from].life), Peer::Worker),
            Machine::Down | Machine::Candidate => return,
        };
        let healed = self.now >= HEALED;
        for (to, message) in out {
            let Some((node, life)) = self.addresses.get(&to).copied() else { continue };
            let copies = if healed {
                1
            } else {
                u32::from(!self.draw.happens(self.schedule.loss))
                    + u32::from(self.draw.happens(self.schedule.twice))
            };
            let left = self.leaves(from, node, life, sender, &message);
            for _ in 0..copies {
                let most = if healed { 500 } else { self.schedule.delay };
                // Now and then one message is very late.
                let late = if !healed && self.draw.happens(10) { self.draw.below(400 * MS) } else { 0 };
                let at = left + 50 + self.draw.below(most) + late;
                if self.cut(from, node, self.now) || self.cut(from, node, at) {
                    continue;
                }
                let message = if self.schedule.seed.is_multiple_of(4) {
                    carried(sender, &message)
                } else {
                    Some(message.clone())
                };
                let Some(message) = message else { continue };
                self.push(
                    at,
                    Happening::Deliver { from: sender, to: node, life, message: Box::new(message) },
                );
            }
        }
    }

    /// When a message has left, behind all that was to be sent to the same process before. What the coordinator says and
    /// hears is small.
    fn leaves(&mut self, from: Node, to: Node, life: u64, sender: Peer, message: &Message) -> u64 {
        let Message::Data(data) = message else { return self.now };
        if self.schedule.slow == 0 || self.now >= HEALED {
            return self.now;
        }
        let now = self.now;
        let link = self.links.entry((from, to, life)).or_default();
        let bytes = wire::Frame::new(sender, data).len() as u64;
        link.free_at = link.free_at.max(now) + bytes * self.schedule.slow / 100;
        if let Data::Install { shard, .. } = data {
            link.states.retain(|(left, _)| *left > now);
            link.states.push((link.free_at, *shard));
            let n = link.states.iter().filter(|(_, s)| s == shard).count();
            self.broken = self.broken.take().or(self.checks.states_under_way(*shard, n).err());
        }
        link.free_at
    }

    /// To whom a process still has something to send.
    pub(super) fn sending(&self, from: Node) -> BTreeSet<Peer> {
        if self.schedule.slow == 0 || self.now >= HEALED {
            return BTreeSet::new();
        }
        let busy = |(_, (to, life)): &(&Peer, &(Node, u64))| {
            self.links.get(&(from, *to, *life)).is_some_and(|link| link.free_at > self.now)
        };
        self.addresses.iter().filter(busy).map(|(peer, _)| *peer).collect()
    }

    /// Whether the network does not carry messages between two processes at a moment.
    fn cut(&self, from: Node, to: Node, at: u64) -> bool {
        self.schedule.faults.iter().any(|fault| {
            let during = |ms: u64| (fault.at * MS..(fault.at + ms) * MS).contains(&at);
            match &fault.what {
                What::Partition(side, ms) => during(*ms) && side.contains(&from) != side.contains(&to),
                What::Cut(a, b, ms) => during(*ms) && (from, to) == (*a, *b),
                _ => false,
            }
        })
    }

    /// Whether a process does not reach the store now, which is on nobody's side.
    pub(super) fn cut_off(&self, node: Node) -> bool {
        self.schedule.faults.iter().any(|fault| match &fault.what {
            What::Partition(side, ms) => {
                side.contains(&node) && (fault.at * MS..(fault.at + ms) * MS).contains(&self.now)
            }
            _ => false,
        })
    }
}

/// A message as it is after its way through its wire format. Nothing when its sender is no member any more.
fn carried(from: Peer, message: &Message) -> Option<Message> {
    match message {
        Message::Data(data) => {
            let mut bytes = Vec::new();
            wire::Frame::new(from, data).write(&mut bytes).expect("memory takes everything");
            let read = wire::read(&mut &bytes[..], &wire::Limits::default());
            let (_, data) = read.expect("what was written can be read").expect("a frame was written");
            Some(data.into())
        }
        Message::FromMember(said) => {
            let bytes = control::from_member(from, said)?.encode_to_vec();
            let read = proto::FromMember::decode(&bytes[..]).expect("what was written can be read");
            let (_, said) = control::read_from_member(read).expect("nothing is missing");
            Some(said.into())
        }
        Message::ToMember(told) => {
            let bytes = control::to_member(told).encode_to_vec();
            let read = proto::ToMember::decode(&bytes[..]).expect("what was written can be read");
            Some(control::read_to_member(read).expect("nothing is missing").into())
        }
    }
}
