//! The coordinator as a state machine: it alone makes views.
//!
//! Promises: epochs rise; a server loses a place that lets it answer only when it has agreed, when its
//! lease has ended, or when its process is known to be gone; a server is made a member of a chain only
//! when it has everything. What it must remember over a crash is [`Durable`], to be stored before the
//! messages of a step leave.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::ids::{Clock, Epoch, Peer, ServerId, SessionId};
use crate::message::{FromMember, Heartbeat, Join, Role, Time, ToMember};
use crate::placement;
use crate::view::{Member, Timing, View};

/// Something that the coordinator says, and to whom.
pub type Said = (Peer, ToMember);

/// What a run is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Size {
    /// Servers to wait for before shards are given out, for a while.
    pub n_servers: usize,
    /// Workers to wait for before slots are given out, for a while.
    pub n_workers: usize,
    /// Into how many shards the parameters are divided; what the servers say when nothing.
    pub n_shards: Option<usize>,
    /// Into how many slots a batch is divided.
    pub n_slots: usize,
    /// How many servers hold each shard, when there are enough.
    pub replicas: usize,
}

/// What outlives a crash of the coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Durable {
    /// The newest view.
    pub view: Arc<View>,
    /// The next number to be given to a process.
    pub next_id: u64,
    /// Servers that must have adopted an epoch, or have lost their lease, before others may see it.
    pub yielding: BTreeMap<ServerId, Epoch>,
    /// Whether slots were given out.
    pub begun: bool,
}

/// The one that keeps the view.
#[derive(Debug)]
pub struct Coordinator {
    size: Size,
    timing: Timing,
    durable: Durable,
    heard: BTreeMap<Peer, Time>,
    granted: BTreeMap<ServerId, Time>, // when the last lease has surely ended
    adopted: BTreeMap<ServerId, Epoch>,
    published: Epoch, // the newest epoch that was sent to everybody
    first_join: Option<Time>,
}

impl Coordinator {
    /// For a new run, or with a clock for one that goes on from a snapshot. Epochs and numbers go on
    /// from `after`, so that whoever knew the run before is refused.
    pub fn new(size: Size, timing: Timing, restored: Option<Clock>, after: Option<&Durable>) -> Self {
        let epoch = Epoch(after.map_or(0, |d| d.view.epoch.0 + 1));
        let slots = vec![None; size.n_slots];
        let view = Arc::new(View { epoch, slots, restored, ..View::default() });
        let next_id = after.map_or(1, |d| d.next_id);
        let durable = Durable { view, next_id, yielding: BTreeMap::new(), begun: false };
        Self::recover(size, timing, durable, Time::ZERO)
    }

    /// After a crash. Nobody's silence is held against them before a full lease has passed.
    pub fn recover(size: Size, timing: Timing, durable: Durable, now: Time) -> Self {
        let view = durable.view.clone();
        let servers = view.servers.keys().map(|id| Peer::Server(*id));
        let heard =
            servers.chain(view.workers.keys().map(|id| Peer::Worker(*id))).map(|p| (p, now)).collect();
        let leased = view.servers.keys().chain(durable.yielding.keys());
        let granted = leased.map(|id| (*id, now + timing.patience())).collect();
        let (adopted, published) = (BTreeMap::new(), Epoch(0));
        let first_join = (!view.servers.is_empty() || !view.workers.is_empty()).then_some(now);
        Self { size, timing, durable, heard, granted, adopted, published, first_join }
    }

    /// What must be stored before the messages of the last step leave.
    pub fn durable(&self) -> &Durable {
        &self.durable
    }

    /// The newest view.
    pub fn view(&self) -> &Arc<View> {
        &self.durable.view
    }

    /// Takes in one message.
    pub fn handle(&mut self, from: Peer, message: FromMember, now: Time) -> Vec<Said> {
        let mut out = Vec::new();
        match (from, message) {
            (Peer::Newcomer(_), FromMember::Join(join)) => self.join(join, now, &mut out),
            (Peer::Server(id), FromMember::Heartbeat(heartbeat)) => {
                self.server_lives(id, heartbeat, now, &mut out);
            }
            (Peer::Worker(id), FromMember::Heartbeat(heartbeat)) => {
                self.worker_lives(id, &heartbeat, now, &mut out);
            }
            _ => {}
        }
        self.publish(now, &mut out);
        out
    }

    /// Lets time pass: members that were silent for too long lose their places.
    pub fn tick(&mut self, now: Time) -> Vec<Said> {
        let mut out = Vec::new();
        let silent = |peer: &Peer| self.heard.get(peer).is_none_or(|t| *t + self.timing.patience() <= now);
        let view = self.view().clone();
        let workers: Vec<SessionId> =
            view.workers.keys().copied().filter(|id| silent(&Peer::Worker(*id))).collect();
        let servers: BTreeSet<ServerId> = view
            .servers
            .keys()
            .copied()
            .filter(|id| silent(&Peer::Server(*id)) && self.lease_ended(*id, now))
            .collect();
        // The last that have everything keep their places for as long as they might come back.
        let servers = if placement::dispensable(&view, &servers) {
            servers
        } else {
            let alone = |id: &ServerId| placement::dispensable(&view, &BTreeSet::from([*id]));
            servers.into_iter().find(|id| alone(id)).into_iter().collect()
        };
        self.change(now, |view| {
            servers.iter().for_each(|id| placement::remove_server(view, *id));
            workers.iter().for_each(|id| drop(view.workers.remove(id)));
        });
        self.publish(now, &mut out);
        out
    }

    /// The process of this member is known to have ended, so that its lease need not be waited for.
    pub fn gone(&mut self, peer: Peer, now: Time) -> Vec<Said> {
        let mut out = Vec::new();
        if let Peer::Server(id) = peer {
            self.granted.remove(&id);
        }
        self.change(now, |view| match peer {
            Peer::Server(id) => placement::remove_server(view, id),
            Peer::Worker(id) => drop(view.workers.remove(&id)),
            Peer::Coordinator | Peer::Newcomer(_) => {}
        });
        self.publish(now, &mut out);
        out
    }

    fn join(&mut self, join: Join, now: Time, out: &mut Vec<Said>) {
        let to = Peer::Newcomer(join.nonce);
        let view = self.view().clone();
        let servers = view.servers.iter().map(|(id, m)| (Peer::Server(*id), m));
        let mut members = servers.chain(view.workers.iter().map(|(id, m)| (Peer::Worker(*id), m)));
        if let Some((you, _)) = members.find(|(_, m)| m.nonce == join.nonce) {
            return out.push((to, ToMember::Welcome { nonce: join.nonce, you }));
        }
        let id = self.durable.next_id;
        self.durable.next_id += 1;
        self.first_join.get_or_insert(now);
        let Join { role, nonce, name, address, restored, n_shards } = join;
        let you = match role {
            Role::Server => Peer::Server(ServerId(id)),
            Role::Worker => Peer::Worker(SessionId(id)),
        };
        self.heard.insert(you, now);
        // A name that comes again is a process that was started again: its former life is over, and with
        // it its lease.
        let is_former = |m: &Member| role == Role::Server && m.name == name;
        let former = view.servers.iter().filter(|(_, m)| is_former(m)).map(|(id, _)| *id);
        let former: Vec<ServerId> = former.collect();
        self.granted.retain(|id, _| !former.contains(id));
        self.change(now, |view| {
            former.iter().for_each(|id| placement::remove_server(view, *id));
            view.workers.retain(|_, m| role == Role::Server || m.name != name);
            let member = Member { name, address, nonce, leaving: false, confirmed: false };
            if view.shards.is_empty() && role == Role::Server {
                view.restored = view.restored.max(restored);
                view.n_shards = view.n_shards.max(n_shards);
            }
            match role {
                Role::Server => drop(view.servers.insert(ServerId(id), member)),
                Role::Worker => drop(view.workers.insert(SessionId(id), member)),
            }
        });
        out.push((to, ToMember::Welcome { nonce, you }));
    }

    fn server_lives(&mut self, id: ServerId, heartbeat: Heartbeat, now: Time, out: &mut Vec<Said>) {
        if !self.view().servers.contains_key(&id) {
            return out.push((Peer::Server(id), ToMember::Expelled));
        }
        self.heard.insert(Peer::Server(id), now);
        let adopted = self.adopted.entry(id).or_default();
        *adopted = (*adopted).max(heartbeat.epoch);
        let current = heartbeat.epoch == self.view().epoch;
        self.change(now, |view| {
            let member = view.servers.get_mut(&id).expect("it is a member");
            member.leaving |= heartbeat.leaving;
            member.confirmed = true;
            // A report from another view may speak of an earlier time that the newcomer joined.
            for (shard, newcomer) in heartbeat.caught_up.iter().filter(|_| current) {
                let Some(chain) = view.shards.get_mut(shard.0 as usize) else { continue };
                let joined =
                    chain.joining.filter(|(s, _)| s == newcomer && chain.members.last() == Some(&id));
                if joined.is_some() {
                    chain.joining = None;
                    chain.members.push(*newcomer);
                }
            }
        });
        let yields = self.durable.yielding.get(&id).is_some_and(|e| self.adopted[&id] < *e);
        let lease = (!yields && self.view().servers.contains_key(&id)).then(|| {
            self.granted.insert(id, now + self.timing.patience());
            heartbeat.sent
        });
        let news = heartbeat.epoch < self.view().epoch;
        let may_see = self.settled(now) || self.durable.yielding.contains_key(&id);
        let view = (news && may_see).then(|| self.view().clone());
        out.push((Peer::Server(id), ToMember::Grant { lease, view }));
    }

    fn worker_lives(&mut self, id: SessionId, heartbeat: &Heartbeat, now: Time, out: &mut Vec<Said>) {
        let to = Peer::Worker(id);
        if !self.view().workers.contains_key(&id) {
            return out.push((to, ToMember::Expelled));
        }
        self.heard.insert(to, now);
        if heartbeat.leaving {
            self.change(now, |view| drop(view.workers.remove(&id)));
            return out.push((to, ToMember::Expelled));
        }
        let news = heartbeat.epoch < self.view().epoch && self.settled(now);
        let view = news.then(|| self.view().clone());
        out.push((to, ToMember::Grant { lease: None, view }));
    }

    /// Makes a new view if `f` or what follows from it changes anything.
    fn change(&mut self, now: Time, f: impl FnOnce(&mut View)) {
        let old = self.view().clone();
        let mut view = View::clone(&old);
        f(&mut view);
        let waited = self.first_join.is_some_and(|t| now >= t + self.timing.gather);
        let enough = |n: usize, announced: usize| n >= announced || (waited && n > 0);
        let servers: Vec<_> =
            view.servers.iter().filter(|(_, m)| m.confirmed && !m.leaving).map(|(id, _)| *id).collect();
        if view.shards.is_empty() && enough(servers.len(), self.size.n_servers) {
            let n_shards = self.size.n_shards.unwrap_or(view.n_shards as usize).max(1);
            view.shards = placement::first_chains(&servers, n_shards, self.size.replicas);
        }
        placement::improve(&mut view, self.size.replicas);
        self.durable.begun |= enough(view.workers.len(), self.size.n_workers);
        if self.durable.begun {
            let workers: Vec<_> = view.workers.keys().copied().collect();
            placement::assign_slots(&mut view.slots, &workers);
        }
        if view == *old {
            return;
        }
        view.epoch = Epoch(old.epoch.0 + 1);
        for (before, after) in old.shards.iter().zip(&view.shards) {
            if let Some(head) = before.head().filter(|h| after.head() != Some(*h)) {
                self.durable.yielding.insert(head, view.epoch);
            }
        }
        self.heard.retain(|peer, _| match peer {
            Peer::Server(id) => view.servers.contains_key(id),
            Peer::Worker(id) => view.workers.contains_key(id),
            Peer::Coordinator | Peer::Newcomer(_) => false,
        });
        self.durable.view = Arc::new(view);
    }

    fn lease_ended(&self, id: ServerId, now: Time) -> bool {
        self.granted.get(&id).is_none_or(|until| *until <= now)
    }

    /// Whether everybody who has to yield has done so; then all may see the newest view.
    fn settled(&mut self, now: Time) -> bool {
        let mut yielding = std::mem::take(&mut self.durable.yielding);
        yielding.retain(|id, epoch| {
            let agreed = self.adopted.get(id).is_some_and(|e| e >= epoch);
            !agreed && !self.lease_ended(*id, now)
        });
        self.durable.yielding = yielding;
        self.durable.yielding.is_empty()
    }

    /// Sends the newest view to everybody who may see it, once.
    fn publish(&mut self, now: Time, out: &mut Vec<Said>) {
        let epoch = self.view().epoch;
        if self.published == epoch {
            return;
        }
        let grant = |view: &Arc<View>| ToMember::Grant { lease: None, view: Some(view.clone()) };
        let view = self.view().clone();
        if self.settled(now) {
            self.published = epoch;
            out.extend(view.servers.keys().map(|id| (Peer::Server(*id), grant(&view))));
            out.extend(view.workers.keys().map(|id| (Peer::Worker(*id), grant(&view))));
        } else {
            out.extend(self.durable.yielding.keys().map(|id| (Peer::Server(*id), grant(&view))));
        }
    }
}
