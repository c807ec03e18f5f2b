//! The invariants, checked while the simulated cluster runs. Numbers as in the list below.
//!
//!  1. the sum of acknowledged pushes equals the parameter, exactly
//!  2. an acknowledged push survives crashes of all but one of a chain
//!  3. one view per epoch, whoever coordinates; one primary per shard and epoch; nobody fenced acknowledges
//!  4. the staleness bound on every read
//!  5. progress while one worker lives; no parked pull is forgotten
//!  6. a slot reads its own writes, and its reads never go back
//!  7. at most one gradient per slot and round
//!  8. BSP gives the same bits in any order; primary and replica are equal
//!  9. every sample is used exactly once under joins and leaves
//! 13. after a restore, sessions from before are fenced
//! 15. every parameter is in exactly one shard
//! 16. tables, queues and buffers are bounded
//! 17. a primary paused beyond its lease never acknowledges after it wakes

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::program::{Program, Set};
use super::schedule::Node;
use crate::ids::{Clock, Epoch, ServerId, SessionId, ShardId, Slot};
use crate::message::{Answer, Data, Message, Outcome, Outgoing};
use crate::server::Server;
use crate::state::{Pushed, Reads, State, Wants};
use crate::sync::Sync;
use crate::view::View;

/// A promise that was broken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The invariant's number.
    pub invariant: u32,
    /// What was seen.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}", self.invariant, self.what)
    }
}

/// What the outside knows about a run.
#[derive(Debug)]
pub struct Checks {
    program: Program,
    sync: Sync,
    n_slots: usize,
    acknowledged: Vec<Vec<Set>>, // by shard and slot: pushes that a worker was told are in
    seen: BTreeMap<(SessionId, Slot), Vec<Vec<Set>>>, // by reader: what it has read, by shard and slot
    begun: BTreeMap<(SessionId, Slot), Vec<Vec<Set>>>, // what was acknowledged when a call began
    views: BTreeMap<Epoch, Arc<View>>, // that somebody has adopted
    primaries: BTreeMap<(ShardId, Epoch), ServerId>,
    newest_head: BTreeMap<ShardId, (Epoch, ServerId)>,
    hashes: BTreeMap<(ShardId, u64), u64>, // of committed states
    restored_at: Epoch,
    resumed: bool,            // a worker acts by the view of then, or a later one
    first_session: SessionId, // those before know the run as it was before the restore
    /// How often each invariant was put to the test.
    pub tested: BTreeMap<u32, u64>,
    /// How often a shard got another head, the run was restored by hand, and went back to a snapshot by itself.
    pub failovers: [u64; 3],
}

impl Checks {
    /// Nothing has happened yet.
    pub fn new(program: Program, sync: Sync, n_slots: usize) -> Self {
        let n_shards = program.layout().n_shards();
        Self {
            program,
            sync,
            n_slots,
            acknowledged: vec![vec![0; n_slots]; n_shards],
            seen: BTreeMap::new(),
            begun: BTreeMap::new(),
            views: BTreeMap::new(),
            primaries: BTreeMap::new(),
            newest_head: BTreeMap::new(),
            hashes: BTreeMap::new(),
            restored_at: Epoch(0),
            resumed: true,
            first_session: SessionId(0),
            tested: BTreeMap::new(),
            failovers: [0; 3],
        }
    }

    fn ensure(
        &mut self,
        invariant: u32,
        holds: bool,
        what: impl FnOnce() -> String,
    ) -> Result<(), Violation> {
        *self.tested.entry(invariant).or_default() += 1;
        if holds { Ok(()) } else { Err(Violation { invariant, what: what() }) }
    }

    /// A worker begins a call.
    pub fn begins(&mut self, session: SessionId, slot: Slot) {
        self.begun.insert((session, slot), self.acknowledged.clone());
    }

    /// A worker was told that its call is done. `clock` is that of the push.
    pub fn done(
        &mut self,
        session: SessionId,
        slot: Slot,
        clock: Clock,
        pushed: &[Option<Pushed>],
    ) -> Result<(), Violation> {
        if session < self.first_session {
            return Ok(());
        }
        for (shard, pushed) in pushed.iter().enumerate() {
            match pushed {
                Some(Pushed::Applied | Pushed::Duplicate) => {
                    self.acknowledged[shard][slot.0 as usize] |= 1 << clock;
                }
                Some(Pushed::Stale) => {
                    let sync = self.sync;
                    let allowed = matches!(sync, Sync::Backup(_));
                    self.ensure(7, allowed, || format!("{session}: a push of {slot} was dropped in {sync}"))?;
                }
                None => {}
            }
        }
        Ok(())
    }

    /// A worker has read at this clock.
    pub fn read(
        &mut self,
        session: SessionId,
        slot: Slot,
        clock: Clock,
        reads: &[Reads],
    ) -> Result<(), Violation> {
        if session < self.first_session {
            return Ok(());
        }
        let mut all = Vec::new();
        for (shard, reads) in (0..).map(ShardId).zip(reads) {
            let sets = self.program.sets(shard, reads);
            let sets = sets.or_else(|e| self.ensure(1, false, || e).map(|()| Vec::new()))?;
            let ordered = self.program.check_order(shard, clock, reads);
            self.ensure(8, ordered.is_ok(), || ordered.unwrap_err())?;
            let below = |clock: Clock| (1u64 << clock) - 1;
            for (k, set) in sets.iter().enumerate() {
                let who =
                    || format!("{slot} of {session} at clock {clock} read {set:b} of slot {k} in {shard}");
                if let (Some(s), false) = (self.sync.staleness(), matches!(self.sync, Sync::Backup(_))) {
                    let due = below(clock.saturating_sub(s));
                    self.ensure(4, set & due == due, || format!("{}, and needs {due:b}", who()))?;
                }
                if self.sync == Sync::Bsp {
                    self.ensure(8, *set == below(clock), || format!("{}, not its exact clock", who()))?;
                }
                if k == slot.0 as usize && !matches!(self.sync, Sync::Backup(_)) {
                    self.ensure(6, set & below(clock) == below(clock), || format!("{}: its own", who()))?;
                }
                if let Some(before) = self.seen.get(&(session, slot)).map(|s| s[shard.0 as usize][k]) {
                    self.ensure(6, set & before == before, || format!("{}, before that {before:b}", who()))?;
                }
                // BSP reads are of their clock, whatever was acknowledged since.
                if let (Some(begun), true) = (self.begun.get(&(session, slot)), self.sync != Sync::Bsp) {
                    let known = begun[shard.0 as usize][k];
                    self.ensure(2, set & known == known, || {
                        format!("{}, but {known:b} was acknowledged before it asked", who())
                    })?;
                }
            }
            all.push(sets);
        }
        self.seen.insert((session, slot), all);
        Ok(())
    }

    /// A server has taken in a message and is about to send these.
    pub fn server(&mut self, server: &Server, out: &[Outgoing]) -> Result<(), Violation> {
        let Some(id) = server.id() else { return Ok(()) };
        let view = server.view();
        let past = self.is_past(view.epoch);
        for (shard, replica) in server.replicas().filter(|_| !past) {
            let Some(state) = replica.state() else { continue };
            let heads = view.head(shard) == Some(id);
            if heads && self.newest_head.get(&shard).is_none_or(|(epoch, _)| *epoch < view.epoch) {
                let old = self.newest_head.insert(shard, (view.epoch, id));
                self.failovers[0] += u64::from(old.is_some_and(|(_, head)| head != id));
            }
            let [waiting, open, log] = replica.held();
            let chain = &view.shards[shard.0 as usize];
            let longest =
                2 * self.n_slots + 2 + if chain.joining.is_some() { crate::replica::LONGEST_LOG } else { 0 };
            self.ensure(16, waiting <= self.n_slots && open <= self.n_slots && log <= longest, || {
                format!("{id} holds {waiting} calls, {open} gradients, {log} records for {shard}")
            })?;
            let forgotten = replica.forgotten();
            self.ensure(5, forgotten.is_none(), || {
                format!("{id} lets {forgotten:?} wait for an answer of {shard} that it could give")
            })?;
            if replica.committed() == state.index() && !self.hashes.contains_key(&(shard, state.index())) {
                self.hashes.insert((shard, state.index()), state.hash());
            } else if replica.committed() == state.index() {
                let (own, other) = (state.hash(), self.hashes[&(shard, state.index())]);
                self.ensure(8, own == other, || {
                    format!("{id}: {shard} after {} records differs from another copy", state.index())
                })?;
            }
        }
        for (to, message) in out {
            let Message::Data(Data::Answer(Answer { epoch, shard, outcome: Outcome::Done(_), .. })) = message
            else {
                continue;
            };
            let first = *self.primaries.entry((*shard, *epoch)).or_insert(id);
            self.ensure(3, first == id, || format!("{first} and {id} both answer for {shard} in {epoch}"))?;
            let (newest, head) = self.newest_head.get(shard).copied().unwrap_or((*epoch, id));
            self.ensure(17, head == id || newest <= *epoch, || {
                format!("{id} answers {to} for {shard} in {epoch}, but {head} is its head since {newest}")
            })?;
            let (restored, past) = (self.restored_at, self.is_past(*epoch));
            self.ensure(13, !past || !self.resumed, || {
                format!("{id} answers {to} in {epoch}, from before the restore at {restored}")
            })?;
        }
        Ok(())
    }

    /// So many copies of a shard's state wait to be sent from one process to another: one, and one more each time that the
    /// newcomer began anew.
    pub fn states_under_way(&mut self, shard: ShardId, n: usize) -> Result<(), Violation> {
        self.ensure(16, n <= 3, || format!("{n} copies of {shard} wait to be sent to one newcomer"))
    }

    /// A process acts by this view. Two coordinators at once must not have made two of the same number.
    pub fn adopted(&mut self, who: Node, view: &Arc<View>) -> Result<(), Violation> {
        // Servers that have to yield see it before.
        self.resumed |= matches!(who, Node::Worker(_)) && !self.is_past(view.epoch);
        let first = self.views.entry(view.epoch).or_insert_with(|| view.clone()).clone();
        self.ensure(3, first == *view, || {
            format!("{who} adopts another {} than others: {view:?} instead of {first:?}", view.epoch)
        })
    }

    /// A new view was made: every shard has one place, and nobody holds it twice.
    pub fn view(&mut self, view: &View) -> Result<(), Violation> {
        for (shard, chain) in (0..).map(ShardId).zip(&view.shards) {
            let all: Vec<_> = chain.pipeline().collect();
            let twice = all.iter().enumerate().any(|(i, s)| all[..i].contains(s));
            self.ensure(15, !twice && chain.members.is_empty() == chain.lost, || {
                format!("{shard} in {}: {chain:?}", view.epoch)
            })?;
        }
        Ok(())
    }

    /// Whether a view is from before the run was taken back.
    pub fn is_past(&self, epoch: Epoch) -> bool {
        epoch < self.restored_at
    }

    /// The run goes on from a snapshot at this clock; what came later is forgotten.
    /// Sessions from before may still hear what was true then.
    pub fn restored(&mut self, clock: Clock, epoch: Epoch, first_session: SessionId) {
        let kept = (1u64 << clock) - 1;
        self.acknowledged.iter_mut().flatten().for_each(|set| *set &= kept);
        self.seen.clear();
        self.begun.clear();
        self.hashes.clear();
        (self.restored_at, self.first_session, self.resumed) = (epoch, first_session, false);
    }

    /// A snapshot is exactly the pushes below its clock.
    pub fn snapshot(&mut self, shard: ShardId, clock: Clock, state: &State) -> Result<(), Violation> {
        let sets = self.contents(shard, clock, state)?;
        let exact = sets.iter().all(|set| *set == (1 << clock) - 1);
        let backup = matches!(self.sync, Sync::Backup(_)) && sets.iter().all(|set| *set < 1 << clock);
        self.ensure(10, exact || backup, || format!("{shard}: the snapshot at {clock} has {sets:?}"))
    }

    /// All is over: every shard has exactly what was acknowledged, each once.
    pub fn end(&mut self, shard: ShardId, clocks: Clock, state: &State) -> Result<(), Violation> {
        let sets = self.contents(shard, clocks, state)?;
        if let Sync::Backup(_) = self.sync {
            let quorum = self.sync.quorum(self.n_slots);
            for clock in 0..clocks {
                let counted = sets.iter().filter(|set| *set >> clock & 1 == 1).count();
                self.ensure(7, counted == quorum, || {
                    format!("{shard}: {counted} gradients count in round {clock} instead of {quorum}")
                })?;
            }
        }
        for (k, set) in sets.into_iter().enumerate() {
            let known = self.acknowledged[shard.0 as usize][k];
            let who = || format!("{shard} ends with {set:b} of slot {k}, {known:b} was acknowledged");
            self.ensure(2, set & known == known, who)?;
            if !matches!(self.sync, Sync::Backup(_)) {
                self.ensure(9, set == (1 << clocks) - 1, || format!("{}, all {clocks} are due", who()))?;
            }
        }
        Ok(())
    }

    fn contents(&mut self, shard: ShardId, clock: Clock, state: &State) -> Result<Vec<Set>, Violation> {
        let request = self.program.pull().swap_remove(shard.0 as usize);
        let wants: &Wants = request.pull.as_ref().expect("a pull pulls");
        let reads = match self.sync {
            Sync::Bsp => state.read(clock, wants),
            _ => state.read(state.version(), wants),
        };
        let reads = match reads {
            Ok(reads) => reads,
            Err(e) => return self.ensure(1, false, || e.to_string()).map(|()| Vec::new()),
        };
        let ordered = self.program.check_order(shard, clock, &reads);
        self.ensure(8, ordered.is_ok(), || ordered.unwrap_err())?;
        let sets = self.program.sets(shard, &reads);
        sets.or_else(|e| self.ensure(1, false, || e).map(|()| Vec::new()))
    }
}
