//! A server as a state machine: its copies of shards, its view and its lease.
//!
//! Nothing here opens a socket or looks at a clock: messages and the time come in, messages go out.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::sync::Arc;

use crate::error::{Refusal, Unwelcome};
use crate::ids::{Clock, Epoch, Peer, RunId, ServerId, ShardId};
use crate::message::{
    Activity, Answer, Behind, Call, Counts, Data, FromMember, Heartbeat, Join, Message, Outcome, Outgoing,
    Role,
};
use crate::message::{Time, ToMember, Wish};
use crate::replica::Replica;
use crate::state::{Plan, Snapshot, State};
use crate::view::{Lease, Timing, View};

/// Where the shards of a run that goes on come from.
pub type Source = Arc<dyn Fn(ShardId, Clock) -> Option<Snapshot> + Send + std::marker::Sync>;

/// One life of a server process.
pub struct Server {
    plan: Arc<Plan>,
    timing: Timing,
    join: Join,
    source: Source,
    id: Option<ServerId>,
    run: RunId, // of whoever gave the number
    forgotten: bool,
    unwelcome: Option<Unwelcome>,
    view: Arc<View>,
    lease: Lease,
    replicas: BTreeMap<ShardId, (Option<Epoch>, Replica)>, // with the epoch since when it joined its chain
    leaving: bool,
    expelled: bool,
    next_heartbeat: Time,
    next_repeat: Time,
    snapshots: Vec<(ShardId, Snapshot)>,
    counts: Counts,
    early: VecDeque<(Peer, Data)>, // of views that are not known here yet
    sending: BTreeSet<Peer>,       // to whom not everything has left
}

/// So many messages of a view to come are kept; more are sent again by whoever wants an answer.
const MOST_EARLY: usize = 64;

impl Server {
    /// A server that will ask to join under this name and random number.
    pub fn new(plan: Arc<Plan>, timing: Timing, join: Join, source: Source) -> Self {
        debug_assert_eq!(join.role, Role::Server);
        Self {
            plan,
            timing,
            join,
            source,
            id: None,
            run: RunId::default(),
            forgotten: false,
            unwelcome: None,
            view: Arc::default(),
            lease: Lease::default(),
            replicas: BTreeMap::new(),
            leaving: false,
            expelled: false,
            next_heartbeat: Time::ZERO,
            next_repeat: Time::ZERO,
            snapshots: Vec::new(),
            counts: Counts::default(),
            early: VecDeque::new(),
            sending: BTreeSet::new(),
        }
    }

    /// Takes in one message.
    pub fn handle(&mut self, from: Peer, message: Message, now: Time) -> Vec<Outgoing> {
        let mut out = Vec::new();
        let epoch = self.view.epoch;
        self.take(from, message, now, &mut out);
        if self.view.epoch != epoch {
            for (from, message) in std::mem::take(&mut self.early) {
                self.data(from, message, now, &mut out);
            }
        }
        self.finish(out, now)
    }

    fn take(&mut self, from: Peer, message: Message, now: Time, out: &mut Vec<Outgoing>) {
        match message {
            Message::Data(data) => self.data(from, data, now, out),
            Message::ToMember(told) => self.told(told, now, out),
            Message::FromMember(_) => {}
        }
    }

    fn data(&mut self, from: Peer, data: Data, now: Time, out: &mut Vec<Outgoing>) {
        if data.epoch().is_some_and(|epoch| epoch > self.view.epoch) && self.plan.mechanisms.fencing {
            // The sender has a newer view. It comes here too, in a moment.
            self.heartbeat(now, out);
            self.early.push_back((from, data));
            if self.early.len() > MOST_EARLY {
                self.early.pop_front();
            }
            return;
        }
        match data {
            Data::Call(call) => self.call(from, call, now, out),
            Data::Replicate { epoch, shard, index, record } => {
                self.chain(from, epoch, shard, now, out, |replica, from, out| {
                    replica.replicate(from, index, record, out);
                });
            }
            Data::Replicated { epoch, shard, index } => {
                self.chain(from, epoch, shard, now, out, |replica, from, out| {
                    replica.replicated(from, index, out);
                });
            }
            Data::Install { epoch, shard, state } => {
                // A state takes its time, and views may change meanwhile. It is good for as long as the newcomer is one,
                // and the sender stands before it: nobody's records are ever taken back.
                let since = self.replicas.get(&shard).and_then(|(since, _)| *since);
                let epoch = if since.is_some_and(|since| epoch >= since) { self.view.epoch } else { epoch };
                self.chain(from, epoch, shard, now, out, |replica, from, out| {
                    replica.install(from, &state, out);
                });
                // Others wait for it in vain.
                self.leaving |= self.unfit().is_some();
            }
            Data::Answer(_) => {}
        }
    }

    fn told(&mut self, told: ToMember, now: Time, out: &mut Vec<Outgoing>) {
        match told {
            ToMember::Welcome { nonce, you: Peer::Server(id), run }
                if nonce == self.join.nonce && self.id.is_none() =>
            {
                (self.id, self.run) = (Some(id), run);
                self.heartbeat(now, out);
            }
            ToMember::Refused { nonce, why } if nonce == self.join.nonce && self.id.is_none() => {
                self.unwelcome = Some(why);
            }
            ToMember::Welcome { .. } | ToMember::Refused { .. } => {}
            ToMember::Grant { lease, view, .. } => {
                if let Some(sent) = lease {
                    self.lease.renew(sent, self.timing.lease);
                }
                if let Some(view) = view.filter(|v| v.epoch > self.view.epoch) {
                    self.adopt(view, now, out);
                }
            }
            ToMember::Expelled { run } => {
                self.expelled = true;
                self.forgotten |= self.id.is_some() && run != self.run;
                self.lease = Lease::default();
            }
        }
    }

    /// Lets time pass: signs of life, and what was not acknowledged goes out again.
    pub fn tick(&mut self, now: Time) -> Vec<Outgoing> {
        let mut out = Vec::new();
        if now >= self.next_heartbeat {
            self.heartbeat(now, &mut out);
        }
        if now >= self.next_repeat {
            self.next_repeat = now + self.timing.retry;
            for (_, replica) in self.replicas.values_mut() {
                let to = replica.passes_to().map(Peer::Server);
                if to.is_some_and(|to| self.sending.contains(&to)) && self.plan.mechanisms.patience {
                    replica.wait_on();
                } else {
                    replica.look_after(&mut out);
                }
            }
        }
        self.finish(out, now)
    }

    /// Sends again what a peer may not have got, after the connection to it was lost.
    pub fn reconnected(&mut self, peer: Peer, now: Time) -> Vec<Outgoing> {
        let mut out = Vec::new();
        for (_, replica) in self.replicas.values_mut() {
            if replica.passes_to().map(Peer::Server) == Some(peer) {
                replica.repeat(&mut out);
            }
        }
        self.finish(out, now)
    }

    /// To whom not everything has left yet that was to be sent; to be told before a tick. What has not left is not lost.
    pub fn sending(&mut self, to: BTreeSet<Peer>) {
        self.sending = to;
    }

    /// Why it cannot hold a shard that it was given: it runs another program.
    pub fn unfit(&self) -> Option<&Refusal> {
        self.replicas.values().find_map(|(_, replica)| replica.unfit())
    }

    /// Why the coordinator does not let it take part.
    pub fn unwelcome(&self) -> Option<&Unwelcome> {
        self.unwelcome.as_ref()
    }

    /// Asks to be relieved of all shards; [`expelled`](Self::expelled) tells when that is done.
    pub fn leave(&mut self) {
        self.leaving = true;
        self.next_heartbeat = Time::ZERO;
    }

    /// Whether the coordinator has taken it out of the view. Its copies are worthless then.
    pub fn expelled(&self) -> bool {
        self.expelled
    }

    /// Whether the coordinator remembers nothing of the run that its shards belong to. They must not be taken for those
    /// of another.
    pub fn forgotten(&self) -> bool {
        self.forgotten
    }

    fn call(&mut self, from: Peer, call: Call, now: Time, out: &mut Vec<Outgoing>) {
        let (epoch, shard, id) = (self.view.epoch, call.shard, call.id);
        let owns = from == self.view.owner(call.slot).map_or(Peer::Coordinator, Peer::Worker);
        let heads = self.id.is_some() && self.view.head(shard) == self.id;
        let leased = self.lease.holds(now) || !self.plan.mechanisms.lease;
        let fenced = self.plan.mechanisms.fencing && (call.epoch != epoch || !owns);
        match self.replicas.get_mut(&shard) {
            // Without a lease nothing is even begun: its answer might not leave.
            Some((_, replica)) if heads && !fenced && leased && !replica.hands_over() => {
                replica.call(from, call, out);
            }
            _ => {
                let answer = Answer { epoch, shard, id, outcome: Outcome::Fenced };
                out.push((from, Data::Answer(answer).into()));
            }
        }
    }

    fn chain(
        &mut self,
        from: Peer,
        epoch: Epoch,
        shard: ShardId,
        now: Time,
        out: &mut Vec<Outgoing>,
        act: impl FnOnce(&mut Replica, ServerId, &mut Vec<Outgoing>),
    ) {
        let Peer::Server(from) = from else { return };
        let fenced = epoch != self.view.epoch && self.plan.mechanisms.fencing;
        if let Some((_, replica)) = self.replicas.get_mut(&shard).filter(|_| !fenced) {
            let before = (replica.caught_up(), replica.is_handed());
            act(replica, from, out);
            if (replica.caught_up(), replica.is_handed()) != before {
                self.heartbeat(now, out); // the coordinator wants to know at once
            }
        }
    }

    fn adopt(&mut self, view: Arc<View>, now: Time, out: &mut Vec<Outgoing>) {
        let Some(me) = self.id else { return };
        // A run that goes back to a checkpoint has no shards for a while.
        self.replicas.retain(|shard, _| (shard.0 as usize) < view.shards.len());
        for (shard, chain) in (0..).map(ShardId).zip(&view.shards) {
            let joins = chain.joining.filter(|(server, _)| *server == me).map(|(_, since)| since);
            if joins.is_none() && !chain.members.contains(&me) {
                self.replicas.remove(&shard);
                continue;
            }
            let stale =
                self.replicas.get(&shard).is_some_and(|(since, _)| joins.is_some() && *since != joins);
            if stale {
                self.replicas.remove(&shard);
            }
            let (_, replica) = self.replicas.entry(shard).or_insert_with(|| {
                let first = || {
                    let snapshot = view.restored.and_then(|clock| (self.source)(shard, clock));
                    match snapshot {
                        Some(snapshot) => State::restored(self.plan.clone(), snapshot),
                        None => State::new(self.plan.clone()),
                    }
                };
                let state = joins.is_none().then(first);
                (joins, Replica::new(shard, self.plan.clone(), state))
            });
            replica.adopt(view.epoch, chain, me, out);
        }
        self.view = view;
        self.heartbeat(now, out); // the coordinator may be waiting for this
    }

    fn heartbeat(&mut self, now: Time, out: &mut Vec<Outgoing>) {
        self.next_heartbeat = now + self.timing.heartbeat;
        if self.id.is_none() {
            out.push((Peer::Coordinator, FromMember::Join(self.join.clone()).into()));
            return;
        }
        let caught_up = self.replicas.iter().filter_map(|(s, (_, r))| Some((*s, r.caught_up()?))).collect();
        let heartbeat = Heartbeat {
            epoch: self.view.epoch,
            sent: now,
            caught_up,
            wish: if self.leaving { Wish::Leave } else { Wish::Stay },
            waiting_for: String::new(),
            clock: self.replicas().filter_map(|(_, r)| Some(r.state()?.version())).min().unwrap_or(0),
            counts: self.counts,
            saved: None,
            behind: self.behind(),
            activity: Activity::default(),
            keeps: false,
            handed: self.handed().collect(),
        };
        out.push((Peer::Coordinator, FromMember::Heartbeat(heartbeat).into()));
    }

    /// The shards of which the one that will be first has everything.
    fn handed(&self) -> impl Iterator<Item = ShardId> {
        self.replicas().filter(|(_, replica)| replica.is_handed()).map(|(shard, _)| shard)
    }

    /// The round under way that is furthest behind, and whom it waits for.
    pub fn behind(&self) -> Option<Behind> {
        self.replicas().filter_map(|(_, replica)| replica.behind()).min_by_key(|behind| behind.clock)
    }

    /// Takes back what may not be said without a lease, and collects the snapshots that were completed.
    fn finish(&mut self, mut out: Vec<Outgoing>, now: Time) -> Vec<Outgoing> {
        self.release(&mut out, now);
        for (shard, (_, replica)) in &mut self.replicas {
            self.snapshots.extend(replica.take_snapshots().into_iter().map(|s| (*shard, s)));
        }
        out
    }

    /// Takes back what may not be said without a lease. To be called again when much time has passed since it was said.
    pub fn release(&self, out: &mut [Outgoing], now: Time) {
        if self.lease.holds(now) || !self.plan.mechanisms.lease {
            return;
        }
        for (_, message) in out {
            if let Message::Data(Data::Answer(Answer { outcome, .. })) = message {
                *outcome = Outcome::Fenced;
            }
        }
    }

    /// Its right to answer.
    pub fn lease(&self) -> &Lease {
        &self.lease
    }

    /// The snapshots that were completed since the last time.
    pub fn take_snapshots(&mut self) -> Vec<(ShardId, Snapshot)> {
        std::mem::take(&mut self.snapshots)
    }

    /// What this process has done so far, to be told with the next sign of life.
    pub fn count(&mut self, counts: Counts) {
        self.counts = counts;
    }

    /// The random number of this life.
    pub fn nonce(&self) -> u64 {
        self.join.nonce
    }

    /// Who it is, once it was told.
    pub fn id(&self) -> Option<ServerId> {
        self.id
    }

    /// The newest view it knows.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// Its copies.
    pub fn replicas(&self) -> impl Iterator<Item = (ShardId, &Replica)> {
        self.replicas.iter().map(|(shard, (_, replica))| (*shard, replica))
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({}, {:?}, {}, {:?})", self.join.name, self.id, self.view.epoch, self.replicas)
    }
}
