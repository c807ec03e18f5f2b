//! One server's copy of one shard, and its place in the chain.
//!
//! The head turns calls into records; every copy applies them in order and passes them on; the last
//! one acknowledges, and the acknowledgement travels back. An answer leaves only when every member of
//! the chain has what it tells of, so nothing that a worker has seen can be lost with fewer crashes than
//! members. A newcomer at the end is sent the state and then, from the log, what came since. That holds nobody up until
//! it lags by no more than what is always on its way, or until the log has grown as large as the state: from then on
//! answers wait for it too. So a transfer ends however long it takes, and a newcomer that is slower than the training slows
//! it down instead of falling behind for ever.
//!
//! Bounded by construction: a slot has one call under way, so at most one waiting call, one gradient in
//! the open round and one uncommitted push per slot exist. Nothing is sent again while it may still be on its way.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::error::Refusal;
use crate::ids::{Epoch, Peer, ServerId, ShardId, Slot};
use crate::message::{Answer, Behind, Call, Data, Done, Outcome, Outgoing};
use crate::state::{Plan, Pushed, Record, Sent, Snapshot, State, Update};
use crate::table::{Delta, sum};
use crate::view::Chain;

/// A newcomer that lags behind by more records than this, or by as many values as the state has, holds up answers.
pub(crate) const LONGEST_LOG: usize = 1024;

/// One copy of a shard.
#[derive(Debug)]
pub struct Replica {
    shard: ShardId,
    plan: Arc<Plan>,
    state: Option<State>, // none until a newcomer got it
    epoch: Epoch,
    is_head: bool,
    hands_over: bool, // another will be the head: no calls are taken any more
    before: Option<ServerId>,
    after: Option<After>,
    committed: u64,                    // every member has the records up to here
    log: Log,                          // what the one after this has not acknowledged
    open: BTreeMap<Slot, Arc<Update>>, // gradients of the round under way
    open_order: Vec<Slot>,             // as they came
    waiting: BTreeMap<Slot, Waiting>,
    snapshots: Vec<Snapshot>,
    unfit: Option<Refusal>,
}

/// The next copy in the chain.
#[derive(Debug)]
struct After {
    server: ServerId,
    since: Option<Epoch>, // when it began to join
    acknowledged: u64,
    stage: Stage,
    counts: bool,                  // answers wait for it; never taken back
    sent: u64,                     // records up to here are on their way
    n_values: usize,               // in the state that it was sent
    awaited: Option<(Stage, u64)>, // what was outstanding at the last look
}

/// How far the next copy has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// It has nothing and was sent nothing.
    Empty,
    /// It was sent the state at this index, perhaps at later ones too, and has not said that it came. The log has what
    /// came since.
    Installing(u64),
    /// It has the state, and acknowledges records.
    Following,
}

/// Records by number, and how many values they have.
#[derive(Debug, Default)]
struct Log {
    records: BTreeMap<u64, Arc<Record>>,
    n_values: usize,
}

impl Log {
    fn insert(&mut self, index: u64, record: Arc<Record>) {
        self.n_values += record.n_values();
        self.records.insert(index, record);
    }

    /// Forgets the records up to `index`.
    fn forget(&mut self, index: u64) {
        let rest = self.records.split_off(&(index + 1));
        let gone = std::mem::replace(&mut self.records, rest);
        self.n_values -= gone.values().map(|record| record.n_values()).sum::<usize>();
    }
}

/// A call that is not answered yet.
#[derive(Debug)]
struct Waiting {
    to: Peer,
    call: Call,
    pushed: Option<Pushed>,
    ready: Option<(u64, Outcome)>, // may leave once so many records are committed
    seen: bool,                    // it was looked at, if in vain
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
            hands_over: false,
            before: None,
            after: None,
            committed: 0,
            log: Log::default(),
            open: BTreeMap::new(),
            open_order: Vec::new(),
            waiting: BTreeMap::new(),
            snapshots: Vec::new(),
            unfit: None,
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
        self.hands_over = self.is_head && chain.handing.is_some();
        let (before, after) = chain.neighbours(me).unwrap_or_default();
        self.before = before;
        let since = chain.joining.filter(|(server, _)| after == Some(*server)).map(|(_, since)| since);
        self.after = match (after, self.after.take()) {
            (None, _) => None,
            (Some(server), Some(old)) if old.server == server && (since.is_none() || since == old.since) => {
                // Records that were sent in the old view may have been refused; a state on its way is not.
                let stage = if since.is_none() { Stage::Following } else { old.stage };
                let counts = old.counts || since.is_none();
                Some(After { stage, counts, since, sent: old.acknowledged, ..old })
            }
            (Some(server), _) => {
                // A member has whatever is committed; a newcomer has nothing.
                let stage = if since.is_some() { Stage::Empty } else { Stage::Following };
                let (acknowledged, counts) =
                    if since.is_some() { (0, false) } else { (self.committed, true) };
                let (sent, n_values, awaited) = (acknowledged, 0, None);
                Some(After { server, since, acknowledged, stage, counts, sent, n_values, awaited })
            }
        };
        if self.after.is_none() {
            self.log = Log::default();
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
        let mut waiting = Waiting { to: from, call, pushed: None, ready: None, seen: false };
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
            if !missing.is_empty() || !state.is_created() {
                self.append(Record::Create(Arc::new(missing)));
            }
        }
        let state = self.state.as_ref().expect("a head has its state");
        if call.save {
            self.snapshots.push(state.standing(call.clock)?);
        }
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
                total.insert(*table, sum(deltas).expect("this table is in one of them"));
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
        let index = state.index();
        self.note(index, record);
    }

    /// Keeps a record for the next copy, which counts once too much is kept.
    fn note(&mut self, index: u64, record: Arc<Record>) {
        let Some(after) = &mut self.after else { return };
        self.log.insert(index, record);
        let much = self.log.records.len() >= LONGEST_LOG || self.log.n_values >= after.n_values;
        after.counts |= much && after.stage != Stage::Empty && self.plan.mechanisms.patience;
    }

    /// A record from the one before.
    pub fn replicate(&mut self, from: ServerId, index: u64, record: Arc<Record>, out: &mut Vec<Outgoing>) {
        if self.before != Some(from) {
            return;
        }
        let Some(state) = &mut self.state else { return };
        if index == state.index() + 1 {
            self.snapshots.extend(state.apply(&record));
            self.note(index, record);
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
        // Who passes records on itself takes them one by one: a later state would leave a gap in its log.
        let lacks = self.state.as_ref().is_none_or(|own| own.index() < sent.index);
        if lacks && self.after.is_none() {
            match State::received(self.plan.clone(), sent.clone()) {
                Ok(state) => self.state = Some(state),
                // It comes from another program: this one cannot take part, and must say so, since others may wait for it.
                Err(refusal) => return self.unfit = Some(refusal),
            }
            self.log = Log::default();
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
            (after.stage, after.sent) = (Stage::Following, index);
        }
        if after.stage == Stage::Empty {
            return;
        }
        after.acknowledged = after.acknowledged.max(index);
        after.sent = after.sent.max(index);
        // There may be no moment when nothing is on its way: what the slots make at once is little enough.
        let little = if self.plan.sync.gathers() { 1 } else { self.plan.n_slots as u64 };
        after.counts |= applied - after.acknowledged <= little;
        self.log.forget(after.acknowledged);
        self.resend(out);
        self.advance(out);
    }

    /// The newcomer at the end that has caught up, for the coordinator to know: it has whatever any worker may know of.
    pub fn caught_up(&self) -> Option<ServerId> {
        let enough = |a: &&After| {
            let all = a.counts && a.acknowledged >= self.committed;
            a.stage == Stage::Following && (all || !self.plan.mechanisms.full_sync)
        };
        self.after.as_ref().filter(enough).map(|a| a.server)
    }

    /// Whether it takes no calls, since another will be the head.
    pub fn hands_over(&self) -> bool {
        self.hands_over
    }

    /// Whether all others have what it has. It makes no records any more, so that stays true until the next view, and the
    /// chain may stand in another order: nobody has a record that its new head lacks.
    pub fn is_handed(&self) -> bool {
        let follows = |a: &After| a.stage == Stage::Following && a.counts;
        let all = self.state.as_ref().is_some_and(|state| state.index() == self.committed);
        let drained = all && self.after.as_ref().is_some_and(follows) && self.log.records.is_empty();
        self.hands_over && (drained || !self.plan.mechanisms.draining)
    }

    /// Why this copy cannot be what it was asked to be.
    pub fn unfit(&self) -> Option<&Refusal> {
        self.unfit.as_ref()
    }

    /// Whom it passes records to.
    pub fn passes_to(&self) -> Option<ServerId> {
        self.after.as_ref().map(|a| a.server)
    }

    /// To be called now and then: sends again what was outstanding at the last call too, without anything having come of
    /// it since. Messages may be lost.
    pub fn look_after(&mut self, out: &mut Vec<Outgoing>) {
        let Some(after) = &mut self.after else { return };
        let outstanding = matches!(after.stage, Stage::Installing(_)) || !self.log.records.is_empty();
        let now = outstanding.then_some((after.stage, after.acknowledged));
        let before = std::mem::replace(&mut after.awaited, now);
        if now.is_some() && (before == now || !self.plan.mechanisms.patience) {
            self.repeat(out);
        }
    }

    /// What was sent is known to be still on its way.
    pub fn wait_on(&mut self) {
        if let Some(after) = &mut self.after {
            after.awaited = None;
        }
    }

    /// Sends again what was not acknowledged, since it is lost.
    pub fn repeat(&mut self, out: &mut Vec<Outgoing>) {
        let (epoch, shard) = (self.epoch, self.shard);
        if let (Some(state), Some(after)) = (&self.state, &mut self.after) {
            after.sent = after.acknowledged;
            match after.stage {
                Stage::Installing(_) if !self.plan.mechanisms.patience => after.stage = Stage::Empty,
                Stage::Installing(_) => {
                    // Whichever of the two comes first will do: the log goes back to the first.
                    let install = Data::Install { epoch, shard, state: Arc::new(state.to_send()) };
                    out.push((Peer::Server(after.server), install.into()));
                }
                Stage::Empty | Stage::Following => {}
            }
        }
        self.resend(out);
    }

    /// Sends on what the next copy lacks and was not sent yet.
    fn resend(&mut self, out: &mut Vec<Outgoing>) {
        let (epoch, shard) = (self.epoch, self.shard);
        let (Some(state), Some(after)) = (&self.state, &mut self.after) else { return };
        let to = Peer::Server(after.server);
        if after.stage == Stage::Empty {
            let sent = state.to_send();
            after.stage = Stage::Installing(state.index());
            (after.acknowledged, after.sent) = (0, state.index());
            after.n_values = sent.n_values();
            self.log = Log::default();
            out.push((to, Data::Install { epoch, shard, state: Arc::new(sent) }.into()));
        }
        if let Stage::Installing(_) = after.stage {
            return; // what follows is sent once the state is there
        }
        for (index, record) in self.log.records.range(after.sent + 1..) {
            let record = record.clone();
            out.push((to, Data::Replicate { epoch, shard, index: *index, record }.into()));
            after.sent = *index;
        }
    }

    /// Moves the commit point, makes ready what may be answered, and answers what is committed.
    fn advance(&mut self, out: &mut Vec<Outgoing>) {
        let Some(state) = &self.state else { return };
        let applied = state.index();
        let counted = self.after.as_ref().filter(|a| a.counts && self.plan.mechanisms.replication);
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
        let waking = self.plan.mechanisms.waking;
        for w in self.waiting.values_mut().filter(|w| w.ready.is_none() && (waking || !w.seen)) {
            w.ready = outcome(state, w).map(|outcome| (applied, outcome));
            w.seen = true;
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
        [self.waiting.len(), self.open.len(), self.log.records.len()]
    }

    /// A slot whose call could be answered and still waits; there is never one after a step.
    pub fn forgotten(&self) -> Option<Slot> {
        let state = self.state.as_ref()?;
        let possible = |w: &Waiting| match &w.ready {
            Some((at, _)) => *at <= self.committed,
            None => self.committed == state.index() && outcome(state, w).is_some(),
        };
        self.waiting.iter().find(|(_, w)| possible(w)).map(|(slot, _)| *slot)
    }

    /// The round that somebody waits for, and the first slot that it lacks. With staleness it is the slot that is furthest
    /// behind, while a read waits.
    pub fn behind(&self) -> Option<Behind> {
        let state = self.state.as_ref().filter(|_| self.is_head)?;
        let (clock, gathers) = (state.version(), self.plan.sync.gathers());
        let waits =
            if gathers { !self.open.is_empty() } else { self.waiting.values().any(|w| w.ready.is_none()) };
        let lacks = |slot: &Slot| {
            if gathers { !self.open.contains_key(slot) } else { state.mark(*slot) == Ok(clock) }
        };
        let slot = (0..self.plan.n_slots as u32).map(Slot).find(lacks).filter(|_| waits)?;
        Some(Behind { clock, slot })
    }
}

/// The update with all gradients at full size.
fn unpacked(update: &Arc<Update>) -> Arc<Update> {
    if update.values().any(|delta| matches!(delta, Delta::Packed(_) | Delta::PackedRows(..) | Delta::Cut(..)))
    {
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
