//! A worker's session as a state machine: its slots, and the calls it has under way.
//!
//! A call goes to all shards at once and is done when all have answered. What was not answered is sent
//! again, under the newest view, until it is: shards apply a push once however often it comes. A slot
//! has one call under way, so a push never overtakes the one before it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::{ClusterError, Refusal};
use crate::ids::{CallId, Clock, Peer, RunId, SessionId, ShardId, Slot};
use crate::message::{
    Activity, Answer, Call, Counts, Data, Done, FromMember, Heartbeat, Join, Message, Outcome, Outgoing,
};
use crate::message::{Role, Time, ToMember, Wish};
use crate::state::{Parts, Pushed, Reads, Update, Wants};
use crate::sync::Sync;
use crate::view::{Timing, View};

/// What a call sends to one shard.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Gradients; a push goes to every shard, if only to move its clock.
    pub push: Option<Arc<Update>>,
    /// What to read.
    pub pull: Option<Arc<Wants>>,
    /// Read only what has everybody's updates below the clock.
    pub fresh: bool,
    /// The shard saves itself as it is: every slot stands at the clock of this one.
    pub save: bool,
}

/// What happened to a session.
#[derive(Debug)]
pub enum Event {
    /// A slot is this session's now and goes on at this clock.
    Gained {
        /// The slot.
        slot: Slot,
        /// Its next clock.
        clock: Clock,
    },
    /// A slot is somebody else's now; its call under way, if any, is off.
    Dropped {
        /// The slot.
        slot: Slot,
    },
    /// A call was done by all shards.
    Done {
        /// The slot.
        slot: Slot,
        /// Its clock when it called.
        asked: Clock,
        /// Its next clock; rounds that were closed without it are skipped.
        clock: Clock,
        /// How the push ended, by shard.
        pushed: Vec<Option<Pushed>>,
        /// What the pull read, by shard.
        reads: Vec<Option<Reads>>,
    },
    /// A shard refused a call for good.
    Refused {
        /// The slot.
        slot: Slot,
        /// Why.
        refusal: Refusal,
    },
    /// It was decided who tells the result, after this session said that it would.
    Kept,
    /// The session is over: another one must be begun, or the run has lost data.
    Ended(Option<ClusterError>),
}

/// One life of a worker process.
#[derive(Debug)]
pub struct Session {
    sync: Sync,
    timing: Timing,
    join: Join,
    tables: Vec<Arc<Parts>>, // by shard: what the owner of the first slot creates
    id: Option<SessionId>,
    run: RunId, // of whoever gave the number
    view: Arc<View>,
    slots: BTreeMap<Slot, Progress>,
    next_call: u64,
    next_heartbeat: Time,
    wish: Wish,
    ended: bool,
    counts: Counts,
    saved: Option<Clock>,
    secured: Option<Clock>,
    keeps: bool,
}

/// A slot's call under way.
#[derive(Debug)]
struct Progress {
    stage: Stage,
    clock: Clock,
    calls: Vec<Pending>, // by shard
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// Asking the shards how far the slot has come.
    Asking,
    /// A call of the user's is under way.
    Calling,
    /// Nothing is.
    Idle,
}

#[derive(Debug)]
struct Pending {
    id: CallId,
    request: Request,
    due: Time, // when to send it, or to send it again
    sent: u32, // how often it was sent in this view
    answer: Option<Done>,
}

impl Session {
    /// A session that will ask to join. `tables` says, by shard, what there is to be created.
    pub fn new(sync: Sync, timing: Timing, join: Join, tables: Vec<Arc<Parts>>) -> Self {
        debug_assert_eq!(join.role, Role::Worker);
        Self {
            sync,
            timing,
            join,
            tables,
            id: None,
            run: RunId::default(),
            view: Arc::default(),
            slots: BTreeMap::new(),
            next_call: 1,
            next_heartbeat: Time::ZERO,
            wish: Wish::Stay,
            ended: false,
            counts: Counts::default(),
            saved: None,
            secured: None,
            keeps: false,
        }
    }

    /// The same, whose calls are numbered from here on.
    pub fn counting_from(self, next_call: CallId) -> Self {
        Self { next_call: next_call.0, ..self }
    }

    /// Begins a call of a slot that has none under way: a push at its clock, or a pull, or both.
    pub fn call(&mut self, slot: Slot, requests: Vec<Request>, now: Time) -> Vec<Outgoing> {
        let mut out = Vec::new();
        if let Some(progress) = self.slots.get_mut(&slot).filter(|p| p.stage == Stage::Idle) {
            progress.stage = Stage::Calling;
            progress.calls = pending(&mut self.next_call, requests, now);
            self.send_due(now, &mut out);
        }
        out
    }

    /// The number of the next call. Those of a slot, one for each shard, follow each other.
    pub fn next_call(&self) -> CallId {
        CallId(self.next_call)
    }

    /// Takes in one message.
    pub fn handle(&mut self, from: Peer, message: Message, now: Time) -> (Vec<Outgoing>, Vec<Event>) {
        let (mut out, mut events) = (Vec::new(), Vec::new());
        if let Message::ToMember(ToMember::Grant { saved, .. }) = &message {
            self.secured = self.secured.max(*saved);
        }
        match message {
            Message::ToMember(ToMember::Welcome { nonce, you: Peer::Worker(id), run })
                if nonce == self.join.nonce && self.id.is_none() =>
            {
                (self.id, self.run) = (Some(id), run);
                self.heartbeat(now, &mut out);
            }
            Message::ToMember(ToMember::Grant { view: Some(view), .. }) if view.epoch > self.view.epoch => {
                self.adopt(view, now, &mut events);
            }
            Message::ToMember(ToMember::Expelled { run }) if self.id.is_some() => {
                let forgotten = (run != self.run).then_some(ClusterError::Forgotten);
                self.end(forgotten, &mut events);
            }
            Message::ToMember(ToMember::Refused { nonce, why })
                if nonce == self.join.nonce && self.id.is_none() =>
            {
                self.end(Some(why.into()), &mut events);
            }
            Message::Data(Data::Answer(answer)) => self.answer(from, answer, now, &mut out, &mut events),
            _ => {}
        }
        self.send_due(now, &mut out);
        (out, events)
    }

    /// Lets time pass: signs of life, and what was not answered goes out again.
    pub fn tick(&mut self, now: Time) -> Vec<Outgoing> {
        let mut out = Vec::new();
        if now >= self.next_heartbeat {
            self.heartbeat(now, &mut out);
        }
        self.send_due(now, &mut out);
        out
    }

    /// Sends everything unanswered to this peer again: the connection to it was lost.
    pub fn reconnected(&mut self, peer: Peer, now: Time) -> Vec<Outgoing> {
        let view = &self.view;
        for progress in self.slots.values_mut() {
            for (shard, pending) in (0..).map(ShardId).zip(&mut progress.calls) {
                if view.head(shard).map(Peer::Server) == Some(peer) {
                    pending.due = now;
                }
            }
        }
        self.tick(now)
    }

    /// To whom not everything has left yet that was to be sent; to be told before a tick. What has not left is not lost.
    pub fn sending(&mut self, to: &BTreeSet<Peer>, now: Time) {
        let (view, later) = (&self.view, now + self.timing.retry);
        for progress in self.slots.values_mut().filter(|_| !to.is_empty()) {
            for (shard, pending) in (0..).map(ShardId).zip(&mut progress.calls).filter(|(_, p)| p.sent > 0) {
                if view.head(shard).is_some_and(|head| to.contains(&Peer::Server(head))) {
                    pending.due = pending.due.max(later);
                }
            }
        }
    }

    /// Says that the work is done, or that the process is about to end.
    pub fn leave(&mut self, now: Time) -> Vec<Outgoing> {
        self.wish = Wish::Go;
        self.next_heartbeat = now;
        self.tick(now)
    }

    /// Says that the process was asked to end, and goes when others have its slots. Whether there are any, the coordinator
    /// decides: the last worker keeps them, and leaves when it has saved them.
    pub fn would_leave(&mut self, now: Time) -> Vec<Outgoing> {
        if self.wish != Wish::Stay {
            return Vec::new();
        }
        self.wish = Wish::Leave;
        self.next_heartbeat = now;
        self.tick(now)
    }

    fn adopt(&mut self, view: Arc<View>, now: Time, events: &mut Vec<Event>) {
        let Some(me) = self.id else { return };
        if let Some(shard) = view.lost() {
            return self.end(Some(ClusterError::Lost { shard }), events);
        }
        self.view = view;
        if self.keeps && self.view.keeper.is_some() {
            events.push(Event::Kept);
        }
        let owned = if self.view.shards.is_empty() { Vec::new() } else { self.view.slots_of(me) };
        self.slots.retain(|slot, _| {
            let keeps = owned.contains(slot);
            if !keeps {
                events.push(Event::Dropped { slot: *slot });
            }
            keeps
        });
        for slot in owned {
            let n_shards = self.view.shards.len();
            let progress = self.slots.entry(slot).or_insert_with(|| Progress {
                stage: Stage::Asking,
                clock: 0,
                calls: pending(&mut self.next_call, vec![Request::default(); n_shards], now),
            });
            progress.calls.iter_mut().for_each(|p| (p.due, p.sent) = (now, 0));
        }
    }

    fn answer(
        &mut self,
        from: Peer,
        answer: Answer,
        now: Time,
        out: &mut Vec<Outgoing>,
        events: &mut Vec<Event>,
    ) {
        let Answer { epoch, shard, id, outcome } = answer;
        let found = self.slots.iter_mut().find_map(|(slot, p)| {
            p.calls.get(shard.0 as usize).filter(|c| c.id == id && c.answer.is_none())?;
            Some((*slot, p))
        });
        let Some((slot, progress)) = found else { return };
        let call = &mut progress.calls[shard.0 as usize];
        match outcome {
            Outcome::Done(done) => {
                call.answer = Some(done);
                if progress.calls.iter().all(|c| c.answer.is_some()) {
                    let oldest = progress.calls.iter().filter_map(|c| Some(c.answer.as_ref()?.version)).min();
                    let read =
                        progress.clock + Clock::from(progress.calls.iter().any(|c| c.request.push.is_some()));
                    self.counts.staleness = read.saturating_sub(oldest.unwrap_or(read));
                    events.push(finish(slot, progress, self.sync));
                }
            }
            Outcome::Refused(refusal) => {
                progress.stage = Stage::Idle;
                progress.calls.clear();
                events.push(Event::Refused { slot, refusal });
            }
            Outcome::Fenced if epoch > self.view.epoch => self.heartbeat(now, out),
            // The server is behind, or its answer was: it will have the view in a moment.
            Outcome::Fenced if Some(from) == self.view.head(shard).map(Peer::Server) => {
                call.due = call.due.min(now + self.timing.heartbeat / 4);
            }
            Outcome::Fenced => {}
        }
    }

    fn send_due(&mut self, now: Time, out: &mut Vec<Outgoing>) {
        for (slot, progress) in &mut self.slots {
            for (shard, pending) in (0..).map(ShardId).zip(&mut progress.calls) {
                if pending.answer.is_some() || pending.due > now {
                    continue;
                }
                let Some(head) = self.view.head(shard) else { continue };
                // A call may be parked for long: it is repeated ever more rarely.
                pending.due = now + self.timing.retry * (1 << pending.sent.min(6));
                pending.sent += 1;
                let asks = progress.stage == Stage::Asking;
                let call = Call {
                    epoch: self.view.epoch,
                    shard,
                    id: pending.id,
                    slot: *slot,
                    clock: progress.clock,
                    create: self.tables.get(shard.0 as usize).filter(|_| asks && *slot == Slot(0)).cloned(),
                    push: pending.request.push.clone(),
                    pull: pending.request.pull.clone(),
                    fresh: pending.request.fresh,
                    save: pending.request.save,
                };
                out.push((Peer::Server(head), Data::Call(call).into()));
            }
        }
    }

    fn heartbeat(&mut self, now: Time, out: &mut Vec<Outgoing>) {
        if self.ended {
            return;
        }
        self.next_heartbeat = now + self.timing.heartbeat;
        let message = match self.id {
            None => FromMember::Join(self.join.clone()),
            Some(_) => FromMember::Heartbeat(Heartbeat {
                epoch: self.view.epoch,
                sent: now,
                caught_up: Vec::new(),
                wish: self.wish,
                waiting_for: self.waiting_for(),
                clock: self.slots.values().map(|p| p.clock).min().unwrap_or(0),
                counts: self.counts,
                saved: self.saved,
                behind: None,
                activity: Activity::default(),
                keeps: self.keeps,
                handed: Vec::new(),
            }),
        };
        out.push((Peer::Coordinator, message.into()));
    }

    fn end(&mut self, why: Option<ClusterError>, events: &mut Vec<Event>) {
        self.slots.clear();
        self.ended = true;
        events.push(Event::Ended(why));
    }

    /// Whose answers are missing, in words; empty when none are.
    pub fn waiting_for(&self) -> String {
        if self.id.is_none() {
            return "the coordinator, to be let in".into();
        }
        let mut names: Vec<String> = Vec::new();
        for (slot, progress) in &self.slots {
            for (shard, pending) in (0..).map(ShardId).zip(&progress.calls) {
                if pending.answer.is_none() && progress.stage != Stage::Idle {
                    let head = self.view.head(shard).and_then(|s| self.view.servers.get(&s));
                    let head = head.map_or("nobody", |m| &m.name);
                    names.push(format!("{shard} of {head} for {slot} at clock {}", progress.clock));
                }
            }
        }
        names.join("; ")
    }

    /// What this process has done so far, to be told with the next sign of life. The staleness is the session's own.
    pub fn count(&mut self, counts: Counts) {
        self.counts = Counts { staleness: self.counts.staleness, ..counts };
    }

    /// The newest checkpoint that this process has made whole. It is told at once: a shard may be lost in a moment.
    pub fn saved(&mut self, clock: Option<Clock>, now: Time) -> Vec<Outgoing> {
        let mut out = Vec::new();
        if clock > self.saved {
            self.saved = clock;
            self.heartbeat(now, &mut out);
        }
        out
    }

    /// The clock of the newest checkpoint that the coordinator is known to know of. The run may be taken back to it, or to a newer
    /// one of which it was told meanwhile.
    pub fn secured(&self) -> Option<Clock> {
        self.secured
    }

    /// The clock at which the run began under this coordinator: that of the checkpoint which was brought back, or the first.
    pub fn began(&self) -> Clock {
        self.view.restored.unwrap_or(0)
    }

    /// Whether this worker is the one that tells the result, which it has: of all that ever compute the first slot, the
    /// coordinator chooses one. Nothing while it has not; an event says when it has.
    pub fn keeps(&mut self, now: Time) -> (Vec<Outgoing>, Option<bool>) {
        let mut out = Vec::new();
        let chosen = self.view.keeper.as_ref().map(|name| *name == self.join.name);
        if chosen.is_none() && !self.keeps {
            self.keeps = true;
            self.heartbeat(now, &mut out);
        }
        (out, chosen)
    }

    /// The random number of this life.
    pub fn nonce(&self) -> u64 {
        self.join.nonce
    }

    /// Who it is, once it was told.
    pub fn id(&self) -> Option<SessionId> {
        self.id
    }

    /// The newest view it knows.
    pub fn view(&self) -> &Arc<View> {
        &self.view
    }

    /// When `tick` next has something to do.
    pub fn next_due(&self) -> Time {
        let calls = self.slots.values().flat_map(|p| &p.calls).filter(|c| c.answer.is_none()).map(|c| c.due);
        calls.min().map_or(self.next_heartbeat, |due| due.min(self.next_heartbeat))
    }
}

fn pending(next_call: &mut u64, requests: Vec<Request>, now: Time) -> Vec<Pending> {
    requests
        .into_iter()
        .map(|request| {
            let id = CallId(*next_call);
            *next_call += 1;
            Pending { id, request, due: now, sent: 0, answer: None }
        })
        .collect()
}

/// All shards have answered: the slot's next clock, and what they said.
fn finish(slot: Slot, progress: &mut Progress, sync: Sync) -> Event {
    let calls = std::mem::take(&mut progress.calls);
    let pushes = calls.iter().any(|c| c.request.push.is_some());
    let done: Vec<Done> = calls.into_iter().filter_map(|c| c.answer).collect();
    let stage = std::mem::replace(&mut progress.stage, Stage::Idle);
    let asked = progress.clock;
    let read_clock = asked + Clock::from(pushes);
    progress.clock = match (stage, sync) {
        // A shard may have closed rounds without this slot. The slowest shard needs it most.
        (_, Sync::Backup(_)) => done.iter().map(|d| d.version).min().unwrap_or(0),
        // The former owner's last push may have reached some shards and not others.
        (Stage::Asking, _) => done.iter().map(|d| d.mark).min().unwrap_or(0),
        _ => read_clock,
    };
    let clock = progress.clock;
    if stage == Stage::Asking {
        return Event::Gained { slot, clock };
    }
    let (pushed, reads) = done.into_iter().map(|d| (d.pushed, d.reads)).unzip();
    Event::Done { slot, asked, clock, pushed, reads }
}
