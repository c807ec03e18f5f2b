//! A worker's loop: whatever happens to its slots, it pulls, computes and pushes.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::cluster::{Program, Pulled, Run, Step};
use crate::codec::Codec;
use crate::doing::Doing;
use crate::error::ClusterError;
use crate::ids::{Clock, ShardId, Slot, TableId};
use crate::layout::{Layout, TableSpec};
use crate::leaving::Leaving;
use crate::net::machine::Machine;
use crate::net::node::{Failure, Node};
use crate::net::process::{ALONE, Among, WorkerProcess};
use crate::net::waits::Waits;
use crate::packing::Encoders;
use crate::session::{Event, Request};
use crate::state::{Update, Wants};
use crate::table::Delta;

/// A worker's loop.
pub(crate) struct Work<'a> {
    pub node: Node<WorkerProcess>,
    pub doing: Doing,
    pub failures: Vec<Failure>, // of all machines in this process
    pub layout: Layout,
    pub tables: &'a [TableSpec],
    pub clocks: Clock,
    pub n_slots: usize,
    pub end: Arc<AtomicBool>,
    pub waits: Waits,
    pub asked: BTreeMap<Slot, Wants>, // what each slot's call under way reads
    pub codec: Codec,
    pub encoders: Encoders,
}

impl Work<'_> {
    /// Until every slot has made its clocks, or nothing more can be done here.
    pub fn run(&mut self, program: &mut impl Program) -> Result<Run, ClusterError> {
        let start = Instant::now();
        let (mut waited, mut steps) = (Duration::ZERO, 0);
        let mut finished: BTreeMap<Slot, Pulled> = BTreeMap::new();
        let mut owned: BTreeMap<Slot, Clock> = BTreeMap::new();
        let mut leaving = Leaving::default();
        loop {
            let begin = Instant::now();
            let event = self.event()?;
            waited += begin.elapsed();
            self.node.lock().waited = waited;
            if let Some(event) = event {
                match event {
                    Event::Gained { slot, clock } => {
                        owned.insert(slot, clock);
                        leaving.gained(slot, clock);
                        program.began(self.node.lock().session().began());
                        self.pull(program, slot, clock);
                    }
                    Event::Dropped { slot } => {
                        self.let_go(program, slot);
                        owned.remove(&slot);
                        finished.remove(&slot);
                        leaving.dropped(slot);
                    }
                    Event::Done { slot, clock, reads, .. } => {
                        if let Some((clock, pulled)) = leaving.saved() {
                            let step = Step { slot, n_slots: self.n_slots, clock };
                            if !program.stop(step, &pulled)? {
                                return Err(ClusterError::Interrupted { clock });
                            }
                            let (elapsed, traffic) = (start.elapsed(), self.node.traffic());
                            // Nobody else is there to tell it.
                            let keeper = true;
                            return Ok(Run { pulled, slot, clock, keeper, steps, waited, elapsed, traffic });
                        }
                        let wants = self.asked.remove(&slot).unwrap_or_default();
                        let pulled = self.layout.gather(&wants, reads.into_iter().flatten().collect());
                        let was = owned.insert(slot, clock);
                        // The last read of a slot waits for everybody: it comes twice at this clock.
                        if clock >= self.clocks && was == Some(clock) {
                            finished.insert(slot, pulled);
                        } else if clock >= self.clocks {
                            self.pull(program, slot, clock);
                        } else if leaving.goes_on(clock) {
                            steps += 1;
                            self.step(program, slot, clock, &pulled)?;
                            leaving.began(slot, clock + 1);
                        } else {
                            leaving.stands(slot, clock, pulled);
                        }
                    }
                    Event::Kept => {}
                    Event::Refused { refusal, .. } => return Err(refusal.into()),
                    Event::Ended(Some(e)) => return Err(e),
                    Event::Ended(None) if self.is_asked() => {
                        let clock = owned.values().copied().min().unwrap_or(0);
                        return Err(ClusterError::Interrupted { clock });
                    }
                    Event::Ended(None) => {
                        owned.keys().for_each(|slot| self.let_go(program, *slot));
                        (owned, finished) = Default::default();
                        leaving.clear();
                        self.node.step(|worker, _| {
                            worker.reborn();
                            Vec::new()
                        });
                    }
                }
            }
            let done = !owned.is_empty() && owned.keys().all(|slot| finished.contains_key(slot));
            if done && let Some(keeper) = self.keeps(&finished) {
                let (slot, pulled) = finished.pop_first().expect("there is a slot");
                let (elapsed, traffic) = (start.elapsed(), self.node.traffic());
                let clock = self.clocks;
                return Ok(Run { pulled, slot, clock, keeper, steps, waited, elapsed, traffic });
            }
            if self.is_asked() {
                leaving.ask();
                while let Some((slot, clock, pulled)) = leaving.behind() {
                    steps += 1;
                    self.step(program, slot, clock, &pulled)?;
                    leaving.began(slot, clock + 1);
                }
                if !self.leave(&mut leaving) {
                    let clock = owned.values().copied().min().unwrap_or(0);
                    return Err(ClusterError::Interrupted { clock });
                }
            }
        }
    }

    fn is_asked(&self) -> bool {
        self.end.load(Ordering::Relaxed)
    }

    /// Leaves the slots to the others, or as the last one has them saved when all stand at one clock. Whether there is
    /// still something to wait for.
    fn leave(&mut self, leaving: &mut Leaving) -> bool {
        let among = self.node.lock().among();
        match among {
            Among::Nobody => return false,
            Among::Others => {
                if leaving.may_go() {
                    self.node.step(|worker, now| worker.session().would_leave(now));
                    return self.waits.bear(&self.node.unheard(), ALONE).is_ok();
                }
            }
            Among::Last => {
                if let Some(clock) = leaving.save(self.n_slots) {
                    // Before the first step there is nothing to save.
                    if clock == 0 {
                        return false;
                    }
                    let save = Request { save: true, ..Request::default() };
                    self.call(Slot(0), Wants::new(), vec![save; self.layout.n_shards()]);
                }
            }
        }
        !leaving.is_late()
    }

    /// Waits for something to happen. Who is not reached for too long ends the wait, and the signal to end does.
    fn event(&mut self) -> Result<Option<Event>, ClusterError> {
        let step = Duration::from_millis(if self.is_asked() { 20 } else { 100 });
        let began = Instant::now();
        loop {
            if let Some(event) = self.node.wait(step, WorkerProcess::take_event) {
                return Ok(Some(event));
            }
            self.failures.iter().try_for_each(Failure::check)?;
            self.node.check_secret()?;
            let unheard = self.node.unheard();
            let wrong = self.node.lock().wrong(self.node.now(), unheard);
            self.waits.look(&wrong)?;
            self.waits.look_who_holds(&wrong, began.elapsed());
            if self.is_asked() {
                return Ok(None);
            }
        }
    }

    /// Whether this worker tells the result, once that is decided. Only who has the first slot asks: it may have had it
    /// for long, or have got it from somebody who was slow or has left.
    fn keeps(&self, finished: &BTreeMap<Slot, Pulled>) -> Option<bool> {
        if !finished.contains_key(&Slot(0)) {
            return Some(false);
        }
        let mut keeps = None;
        self.node.step(|worker, now| {
            let (out, chosen) = worker.session().keeps(now);
            keeps = chosen;
            out
        });
        keeps
    }

    fn let_go(&mut self, program: &mut impl Program, slot: Slot) {
        program.let_go(slot);
        self.encoders.let_go(slot);
        self.node.lock().landing().forget(slot);
    }

    fn pull(&mut self, program: &mut impl Program, slot: Slot, clock: Clock) {
        let wants = program.wants(Step { slot, n_slots: self.n_slots, clock }, self.tables);
        let mut requests = self.layout.divide(&wants);
        requests.iter_mut().for_each(|r| r.fresh = clock >= self.clocks);
        self.call(slot, wants, requests);
    }

    fn step(
        &mut self,
        program: &mut impl Program,
        slot: Slot,
        clock: Clock,
        pulled: &Pulled,
    ) -> Result<(), ClusterError> {
        let step = Step { slot, n_slots: self.n_slots, clock };
        self.doing.begin("compute");
        let gradients = program.compute(step, pulled);
        if let Some(problem) = program.problem() {
            return Err(problem);
        }
        let wants = program.wants(Step { clock: clock + 1, ..step }, self.tables);
        let mut requests = self.layout.divide(&wants);
        for (shard, request) in (0..).map(ShardId).zip(&mut requests) {
            let part = |(id, delta): &(TableId, Delta)| Some((*id, self.layout.part(shard, *id, delta)?));
            let mut update: Update = gradients.iter().filter_map(part).collect();
            if self.codec != Codec::F32 {
                for (id, delta) in update.iter_mut().filter(|(id, _)| !program.is_exact(**id)) {
                    self.encoders.pack(self.codec, (slot, *id, shard), delta);
                }
            }
            request.push = Some(Arc::new(update));
        }
        self.doing.rest();
        let saved = program.saved();
        self.node.step(|worker, now| worker.session().saved(saved, now));
        if let Some(clock) = self.node.lock().session().secured() {
            program.secured(clock);
        }
        self.call(slot, wants, requests);
        Ok(())
    }

    fn call(&mut self, slot: Slot, wants: Wants, requests: Vec<Request>) {
        let places = self.layout.places(&wants);
        self.asked.insert(slot, wants);
        self.node.step(|worker, now| {
            // The slot may have gone and come back while this was computed, with another clock: then it begins anew.
            let gone = worker.has_dropped(slot);
            if gone { Vec::new() } else { worker.call(slot, requests, places, now) }
        });
    }
}
