//! The agreed membership: who holds which shard, who computes which slot.
//!
//! Only the coordinator makes views, and numbers them. Every message between workers and servers
//! carries the number, and a server refuses any other: so nobody acts on a membership that has passed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::ids::{Clock, Epoch, Peer, ServerId, SessionId, ShardId, Slot};
use crate::message::{Role, Time};

/// One agreed membership.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct View {
    /// Its number.
    pub epoch: Epoch,
    /// The servers.
    pub servers: BTreeMap<ServerId, Member>,
    /// The workers.
    pub workers: BTreeMap<SessionId, Member>,
    /// Who holds each shard.
    pub shards: Vec<Chain>,
    /// Who computes each slot.
    pub slots: Vec<Option<SessionId>>,
    /// The clock of the snapshot that the first servers start from.
    pub restored: Option<Clock>,
    /// The shards into which the servers want the parameters to be divided, each by its bytes.
    pub shard_bytes: Vec<u64>,
    /// The name of the worker that tells the result, once one has it.
    pub keeper: Option<String>,
}

/// One process of a view.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Member {
    /// The same for all lives of a process.
    pub name: String,
    /// Where others reach it.
    pub address: String,
    /// The random number of this life.
    pub nonce: u64,
    /// It wants to go.
    pub leaving: bool,
    /// It was heard of under its number. A request to join may come late, when its sender is long gone.
    pub confirmed: bool,
    /// The host that it runs on, for people to look at.
    pub host: String,
}

/// The servers of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Chain {
    /// Those that have everything; the first one is asked, and each passes records on to the next.
    pub members: Vec<ServerId>,
    /// One that is being brought up to date by the last member, and since when.
    pub joining: Option<(ServerId, Epoch)>,
    /// Every server that had everything is gone.
    pub lost: bool,
    /// The member that will be the first one, as soon as it has all that the first one has, which takes no calls meanwhile.
    pub handing: Option<ServerId>,
}

impl Chain {
    /// The one that workers talk to.
    pub fn head(&self) -> Option<ServerId> {
        self.members.first().copied()
    }

    /// The members, then the one that joins.
    pub fn pipeline(&self) -> impl DoubleEndedIterator<Item = ServerId> + '_ {
        self.members.iter().copied().chain(self.joining.map(|(server, _)| server))
    }

    /// Makes the member first that was to be; the one that was first comes last.
    pub fn hand_over(&mut self) {
        if let Some(at) = self.handing.take().and_then(|next| self.members.iter().position(|s| *s == next)) {
            let next = self.members.remove(at);
            let head = std::mem::replace(&mut self.members[0], next);
            self.members.push(head);
        }
    }

    /// Whom this server gets records from and whom it passes them to.
    pub fn neighbours(&self, server: ServerId) -> Option<(Option<ServerId>, Option<ServerId>)> {
        let all: Vec<_> = self.pipeline().collect();
        let i = all.iter().position(|s| *s == server)?;
        Some((i.checked_sub(1).map(|i| all[i]), all.get(i + 1).copied()))
    }
}

impl View {
    /// Everybody: the servers, then the workers.
    pub fn members(&self) -> impl Iterator<Item = (Peer, Role, &Member)> {
        let servers = self.servers.iter().map(|(id, m)| (Peer::Server(*id), Role::Server, m));
        servers.chain(self.workers.iter().map(|(id, m)| (Peer::Worker(*id), Role::Worker, m)))
    }

    /// One of them.
    pub fn member(&self, peer: Peer) -> Option<&Member> {
        match peer {
            Peer::Server(id) => self.servers.get(&id),
            Peer::Worker(id) => self.workers.get(&id),
            Peer::Coordinator | Peer::Newcomer(_) => None,
        }
    }

    /// The one of this role and name, and its host.
    pub fn named(&self, role: Role, name: &str) -> Option<(Peer, &str)> {
        let mut members = self.members();
        members.find(|(_, r, m)| *r == role && m.name == name).map(|(peer, _, m)| (peer, m.host.as_str()))
    }

    /// Who computes a slot.
    pub fn owner(&self, slot: Slot) -> Option<SessionId> {
        self.slots.get(slot.0 as usize).copied().flatten()
    }

    /// The slots of a session, lowest first.
    pub fn slots_of(&self, session: SessionId) -> Vec<Slot> {
        (0..).map(Slot).zip(&self.slots).filter(|(_, s)| **s == Some(session)).map(|(k, _)| k).collect()
    }

    /// The head of a shard's chain.
    pub fn head(&self, shard: ShardId) -> Option<ServerId> {
        self.shards.get(shard.0 as usize).and_then(Chain::head)
    }

    /// The first shard that nobody holds any more.
    pub fn lost(&self) -> Option<ShardId> {
        (0..).map(ShardId).zip(&self.shards).find(|(_, c)| c.lost).map(|(id, _)| id)
    }
}

/// For how long silence is borne, and how often signs of life are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timing {
    /// A server may answer for so long after it sent the last heartbeat that was answered.
    pub lease: Duration,
    /// Between two heartbeats.
    pub heartbeat: Duration,
    /// After so long without an answer, a message is sent again.
    pub retry: Duration,
    /// Two clocks may differ in speed by one part in this many.
    pub drift: u32,
    /// How long shards and slots wait for processes that were announced but have not come.
    pub gather: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            lease: Duration::from_millis(300),
            heartbeat: Duration::from_millis(60),
            retry: Duration::from_millis(100),
            drift: 20,
            gather: Duration::from_secs(10),
        }
    }
}

impl Timing {
    /// How long the coordinator waits before it gives the place of a silent member to another: longer
    /// than the member itself can believe in its lease, whatever their clocks do.
    pub fn patience(&self) -> Duration {
        self.lease + self.lease * 4 / self.drift
    }
}

/// A server's right to answer. Counted from when the heartbeat left, so that it ends for the server
/// before it ends for the coordinator, which counts from when the heartbeat came. A clone is the same lease: it may be
/// renewed while its server is at work.
#[derive(Debug, Clone, Default)]
pub struct Lease {
    until: Arc<AtomicU64>, // in nanoseconds; at zero it has never been given
}

impl Lease {
    /// Takes note of an answered heartbeat.
    pub fn renew(&self, sent: Time, length: Duration) {
        self.until.fetch_max(nanos(sent + length), Ordering::SeqCst);
    }

    /// Whether it holds.
    pub fn holds(&self, now: Time) -> bool {
        nanos(now) < self.until.load(Ordering::SeqCst)
    }
}

fn nanos(time: Time) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_counts_from_when_the_heartbeat_left_and_never_shrinks() {
        let (ms, lease) = (Duration::from_millis, Lease::default());
        assert!(!lease.holds(ms(0)));
        lease.renew(ms(100), ms(300));
        lease.renew(ms(50), ms(300));
        assert!(lease.holds(ms(399)) && !lease.holds(ms(400)));
    }

    #[test]
    fn the_coordinator_is_more_patient_than_the_slowest_clock() {
        let t = Timing::default();
        // The member's clock runs slow by one part in `drift`, the coordinator's fast.
        let member = t.lease.as_secs_f64() / (1.0 - 1.0 / f64::from(t.drift));
        let coordinator = t.patience().as_secs_f64() / (1.0 + 1.0 / f64::from(t.drift));
        assert!(coordinator > member);
    }

    #[test]
    fn neighbours_follow_the_order_of_the_chain() {
        let [a, b, c] = [1, 2, 3].map(ServerId);
        let chain = Chain { members: vec![a, b], joining: Some((c, Epoch(1))), ..Chain::default() };
        assert_eq!(chain.neighbours(a), Some((None, Some(b))));
        assert_eq!(chain.neighbours(b), Some((Some(a), Some(c))));
        assert_eq!(chain.neighbours(c), Some((Some(b), None)));
        assert_eq!(chain.neighbours(ServerId(4)), None);
    }
}
