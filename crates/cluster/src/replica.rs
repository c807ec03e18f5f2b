//! One server's copy of one shard, and its place in the chain.
//!
//! The head turns calls into records; every copy applies them in order and passes them on; the last
//! one acknowledges, and the acknowledgement travels back. An answer leaves only when every member of
//! the chain has what it tells of, so nothing that a worker has seen can be lost with fewer crashes than
//! members. A newcomer at the end is brought up to date without holding anybody up; from the moment it
//! has everything, answers wait for it too.
//!
//! Bounded by construction: a slot has one call under way, so at most one waiting call, one gradient in
//! the open round and one uncommitted push per slot exist.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Refusal;
use crate::ids::{Epoch, Peer, ServerId, ShardId, Slot, TableId};
use crate::message::{Answer, Call, Data, Done, Outcome, Outgoing};
use crate::state::{Plan, Pushed, Record, Sent, Snapshot, State, Update};
use crate::table::{Delta, Values, sum};
use crate::view::Chain;

/// A newcomer that lags behind by more records than this gets the whole state again.
const LONGEST_LOG: usize = 1024;

/// One copy of a shard.
#[derive(Debug)]
pub struct Replica {
    shard: ShardId,
    plan: Arc<Plan>,
    state: Option<State>, // none until a newcomer got it
    epoch: Epoch,
    is_head: bool,
    before: Option<ServerId>,
    after: Option<After>,
    committed: u64,                    // every member has the records up to here
    log: BTreeMap<u64, Arc<Record>>,   // what the one after this has not acknowledged
    open: BTreeMap<Slot, Arc<Update>>, // gradients of the round under way
    open_order: Vec<Slot>,             // as they came
    sums: BTreeMap<TableId, Values>,   // of the last round: memory for the next
    waiting: BTreeMap<Slot, Waiting>,
    snapshots: Vec<Snapshot>,
}

/// The next copy in the chain.
#[derive(Debug)]
struct After {
    server: ServerId,
    since: Option<Epoch>, // when it began to join
    acknowledged: u64,
    stage: Stage,
    sent: u64, // records up to here are on their way
}

/// How far the next copy takes part.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It has nothing and was sent nothing.
    Empty,
    /// It was sent the state at this index and has not said that it came.
    Installing(u64),
    /// It has the state and some records, not all.
    Following,
    /// Answers wait for it.
    Counted,
}

/// A call that is not answered yet.
#[derive(Debug)]
struct Waiting {
    to: Peer,
    call: Call,
    pushed: Option<Pushed>,
    ready: Option<(u64, Outcome)>, // may leave once so many records are committed
}

impl Replica {
    /// A copy that starts from a state everybody has, or with `None` one that waits to be given it.
    pub fn new(shard: ShardId, plan: Arc<Plan>, state: Option<State>) -> Self {
        Self {
            shard,
            plan,
            state,
            epoch: Epoch(0),
            is_head: false,
            before: None,
            after: None,
            committed: 0,
            log: BTreeMap::new(),
            open: BTreeMap::new(),
            open_order: Vec::new(),
            sums: BTreeMap::new(),
            waiting: BTreeMap::new(),
            snapshots: Vec::new(),
        }
    }

    /// Takes its place in a new view. Calls that wait were made in the old one: their senders are told.
    pub fn adopt(&mut self, epoch: Epoch, chain: &Chain, me: ServerId, out: &mut Vec<Outgoing>) {
        for (_, w) in std::mem::take(&mut self.waiting) {
            let (shard, id) = (self.shard, w.call.id);
            let answer = Answer { epoch, shard, id, outcome: Outcome::Fenced };
            out.push((w.to, Data::Answer(answer).into()));
        }
        self.open.clear();
        self.open_order.clear();
        self.epoch = epoch;
        self.is_head = chain.head() == Some(me);
        let (before, after) = chain.neighbours(me).unwrap_or_default();
        self.before = before;
        let since = chain.joining.filter(|(server, _)| after == Some(*server)).map(|(_, since)| since);
        self.after = match (after, self.after.take()) {
            (None, _) => None,
            (Some(server), Some(old)) if old.server == server && (since.is_none() || since == old.since) => {
                let stage = match since {
                    Some(_) if matches!(old.stage, Stage::Installing(_)) => Stage::Empty,
                    Some(_) => old.stage,
                    None => Stage::Counted,
                };
                // What was sent in the old view may have been refused.
                Some(After { stage, sent: old.acknowledged, ..old })
            }
            (Some(server), _) => {
                // A member has whatever is committed; a newcomer has nothing.
                let stage = if since.is_some() { Stage::Empty } else { Stage::Counted };
                let acknowledged = if since.is_some() { 0 } else { self.committed };
                Some(After { server, since, acknowledged, stage, sent: acknowledged })
            }
        };
        if self.after.is_none() {
            self.log.clear();
        }
        self.resend(out);
        self.advance(out);
    }

    /// A request by a worker whose right to the slot was checked.
    pub fn call(&mut self, from: Peer, call: Call, out: &mut Vec<Outgoing>) {
        let slot = call.slot;
        if self.waiting.get(&slot).is_some_and(|w| w.to == from && w.call.id > call.id) {
            return; // an old one, come late
        }
        let outcome = self.begin(&call);
        let mut waiting = Waiting { to: from, call, pushed: None, ready: None };
        match outcome {
            Ok(pushed) => waiting.pushed = pushed,
            Err(refusal) => waiting.ready = Some((0, Outcome::Refused(refusal))),
        }
        self.waiting.insert(slot, waiting);
        self.close_round();
        self.resend(out);
        self.advance(out);
    }

    /// Does what can be done at once: creates, and applies or gathers the push.
    fn begin(&mut self, call: &Call) -> Result<Option<Pushed>, Refusal> {
        let state = self.state.as_ref().expect("a head has its state");
        state.mark(call.slot)?;
        if let Some(parts) = &call.create {
            let missing = state.missing(parts)?;
            if !missing.is_empty() {
                self.append(Record::Create(Arc::new(missing)));
            }
        }
        let state = self.state.as_ref().expect("a head has its state");
        let Some(update) = &call.push else { return Ok(None) };
        let update = &unpacked(update);
        if let Some(settled) = state.settled(call.slot, call.clock)? {
            return Ok(Some(settled));
        }
        state.check(update)?;
        if self.plan.sync.gathers() {
            if self.open.insert(call.slot, update.clone()).is_none() {
                self.open_order.push(call.slot);
            }
            return Ok(None);
        }
        self.append(Record::Push { slot: call.slot, clock: call.clock, update: update.clone() });
        Ok(Some(Pushed::Applied))
    }

    /// Closes the open round when enough gradients are there.
    fn close_round(&mut self) {
        if self.open.is_empty() || !self.plan.sync.closes(self.open.len(), self.plan.n_slots) {
            return;
        }
        let open = std::mem::take(&mut self.open);
        let came = std::mem::take(&mut self.open_order);
        let slots: Vec<Slot> = open.keys().copied().collect();
        let order = if self.plan.mechanisms.slot_order { &slots } else { &came };
        let mut total = Update::new();
        for table in open.values().flat_map(|u| u.keys()) {
            if !total.contains_key(table) {
                let deltas = order.iter().filter_map(|slot| open[slot].get(table));
                let sum = sum(deltas, self.sums.remove(table)).expect("this table is in one of them");
                if let Delta::Dense(values) = &sum
                    && slots.len() > 1
                {
                    self.sums.insert(*table, values.clone());
                }
                total.insert(*table, sum);
            }
        }
        let clock = self.state.as_ref().expect("a head has its state").version();
        for slot in &slots {
            if let Some(w) = self.waiting.get_mut(slot) {
                w.pushed = Some(Pushed::Applied);
            }
        }
        self.append(Record::Round { clock, slots, sum: Arc::new(total) });
    }

    fn append(&mut self, record: Record) {
        let record = Arc::new(record);
        let state = self.state.as_mut().expect("who has no state makes no records");
        self.snapshots.extend(state.apply(&record));
        if self.after.is_some() {
            self.log.insert(state.index(), record);
        }
    }

    /// A record from the one before.
    pub fn replicate(&mut self, from: ServerId, index: u64, record: Arc<Record>, out: &mut Vec<Outgoing>) {
        if self.before != Some(from) {
            return;
        }
        let Some(state) = &mut self.state else { return };
        if index == state.index() + 1 {
            self.snapshots.extend(state.apply(&record));
            if self.after.is_some() {
                self.log.insert(index, record);
            }
            self.resend(out);
        }
        let committed = self.committed;
        self.advance(out);
        if self.committed == committed {
            self.acknowledge(out); // it was a repetition: the last acknowledgement may be lost
        }
    }

    /// The whole state from the one before, for a newcomer.
    pub fn install(&mut self, from: ServerId, sent: &Sent, out: &mut Vec<Outgoing>) {
        if self.before != Some(from) {
            return;
        }
        if self.state.as_ref().is_none_or(|own| own.index() < sent.index) {
            // What does not fit comes from another program: this one cannot take part.
            let Ok(state) = State::received(self.plan.clone(), sent.clone()) else { return };
            self.state = Some(state);
            self.log.clear();
        }
        self.advance(out);
        self.acknowledge(out);
    }

    /// The rest of the chain has the records up to `index`.
    pub fn replicated(&mut self, from: ServerId, index: u64, out: &mut Vec<Outgoing>) {
        let Some(applied) = self.state.as_ref().map(State::index) else { return };
        let Some(after) = self.after.as_mut().filter(|a| a.server == from && index <= applied) else {
            return;
        };
        if let Stage::Installing(at) = after.stage {
            if index < at {
                return;
            }
            after.stage = Stage::Following;
        }
        if after.stage == Stage::Empty {
            return;
        }
        after.acknowledged = after.acknowledged.max(index);
        after.sent = after.sent.max(index);
        if after.stage == Stage::Following && after.acknowledged == applied {
            after.stage = Stage::Counted;
        }
        let acknowledged = after.acknowledged;
        self.log = self.log.split_off(&(acknowledged + 1));
        self.advance(out);
    }

    /// The newcomer at the end that has caught up, for the coordinator to know.
    pub fn caught_up(&self) -> Option<ServerId> {
        let enough = |a: &&After| match a.stage {
            Stage::Counted => true,
            Stage::Following => !self.plan.mechanisms.full_sync,
            Stage::Empty | Stage::Installing(_) => false,
        };
        self.after.as_ref().filter(enough).map(|a| a.server)
    }

    /// Sends again what was not acknowledged, since messages may be lost.
    pub fn repeat(&mut self, out: &mut Vec<Outgoing>) {
        if let Some(after) = &mut self.after {
            after.sent = after.acknowledged;
            if let Stage::Installing(_) = after.stage {
                after.stage = Stage::Empty;
            }
        }
        self.resend(out);
    }

    /// Sends on what the next copy lacks and was not sent yet.
    fn resend(&mut self, out: &mut Vec<Outgoing>) {
        let (epoch, shard) = (self.epoch, self.shard);
        let (Some(state), Some(after)) = (&self.state, &mut self.after) else { return };
        let to = Peer::Server(after.server);
        let lags = self.log.len() > LONGEST_LOG && after.stage == Stage::Following;
        if after.stage == Stage::Empty || lags {
            after.stage = Stage::Installing(state.index());
            (after.acknowledged, after.sent) = (0, state.index());
            self.log.clear();
            let install = Data::Install { epoch, shard, state: Arc::new(state.to_send()) };
            out.push((to, install.into()));
        }
        if let Stage::Installing(_) = after.stage {
            return; // what follows is sent once the state is there
        }
        for (index, record) in self.log.range(after.sent + 1..) {
            let record = record.clone();
            out.push((to, Data::Replicate { epoch, shard, index: *index, record }.into()));
            after.sent = *index;
        }
    }

    /// Moves the commit point, makes ready what may be answered, and answers what is committed.
    fn advance(&mut self, out: &mut Vec<Outgoing>) {
        let Some(state) = &self.state else { return };
        let applied = state.index();
        let counted =
            self.after.as_ref().filter(|a| a.stage == Stage::Counted && self.plan.mechanisms.replication);
        let committed = self.committed.max(counted.map_or(applied, |a| a.acknowledged));
        let news = committed > self.committed;
        self.committed = committed;
        if news {
            self.acknowledge(out);
        }
        if !self.is_head {
            return;
        }
        let state = self.state.as_ref().expect("it was there above");
        for w in self.waiting.values_mut().filter(|w| w.ready.is_none()) {
            w.ready = outcome(state, w).map(|outcome| (applied, outcome));
        }
        let (epoch, shard) = (self.epoch, self.shard);
        let done =
            self.waiting.extract_if(.., |_, w| w.ready.as_ref().is_some_and(|(at, _)| *at <= committed));
        out.extend(done.map(|(_, w)| {
            let (_, outcome) = w.ready.expect("just found so");
            (w.to, Data::Answer(Answer { epoch, shard, id: w.call.id, outcome }).into())
        }));
    }

    fn acknowledge(&self, out: &mut Vec<Outgoing>) {
        if let (Some(before), Some(_)) = (self.before, &self.state) {
            let (epoch, shard, index) = (self.epoch, self.shard, self.committed);
            out.push((Peer::Server(before), Data::Replicated { epoch, shard, index }.into()));
        }
    }

    /// The snapshots that were completed since the last time.
    pub fn take_snapshots(&mut self) -> Vec<Snapshot> {
        std::mem::take(&mut self.snapshots)
    }

    /// The state, once it has one.
    pub fn state(&self) -> Option<&State> {
        self.state.as_ref()
    }

    /// How many records are known to be on every member.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// What it holds back: calls, gradients of the open round, records in the log.
    pub fn held(&self) -> [usize; 3] {
        [self.waiting.len(), self.open.len(), self.log.len()]
    }

    /// The slots that the open round waits for, when somebody waits at all.
    pub fn missing_slots(&self) -> Vec<Slot> {
        let absent = |slot: &Slot| !self.open.contains_key(slot);
        let all = (0..self.plan.n_slots as u32).map(Slot);
        if self.open.is_empty() { Vec::new() } else { all.filter(absent).collect() }
    }
}

/// The update with all gradients at full size.
fn unpacked(update: &Arc<Update>) -> Arc<Update> {
    if update.values().any(|delta| matches!(delta, Delta::Packed(_) | Delta::Cut(..))) {
        Arc::new(update.iter().map(|(id, delta)| (*id, delta.unpacked())).collect())
    } else {
        update.clone()
    }
}

/// The outcome of a waiting call, when all of it is done.
fn outcome(state: &State, w: &Waiting) -> Option<Outcome> {
    let call = &w.call;
    if call.push.is_some() && w.pushed.is_none() {
        return None;
    }
    let reads = match &call.pull {
        None => None,
        Some(wants) if state.readable(call.slot, call.read_clock(), wants, call.fresh) => {
            match state.read(call.read_clock(), wants) {
                Ok(reads) => Some(reads),
                Err(refusal) => return Some(Outcome::Refused(refusal)),
            }
        }
        Some(_) => return None,
    };
    let mark = state.mark(call.slot).expect("checked when the call came");
    Some(Outcome::Done(Done { pushed: w.pushed, reads, version: state.version(), mark }))
}
