//! The simulated cluster: processes, their clocks, and a network that does what the schedule says.

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use prost::Message as _;

use super::check::{Checks, Violation};
use super::election::{self, Store, Term};
use super::program::Program;
use super::schedule::{Draw, Node, Schedule, What};
use crate::control::{self, proto};
use crate::coordinator::{Coordinator, Durable, Said, Size};
use crate::error::Refusal;
use crate::ids::{Clock, Epoch, Peer, SessionId, ShardId, Slot};
use crate::mechanisms::Mechanisms;
use crate::message::Settings;
use crate::message::{Data, Join, Message, Outgoing, Role, Time};
use crate::placement;
use crate::server::{Server, Source};
use crate::session::{Event, Session};
use crate::state::{Plan, Reads, Snapshot, State};
use crate::view::Timing;
use crate::wire;

const MS: u64 = 1000;
/// The network is whole and quick from here on.
const HEALED: u64 = 2_000 * MS;
/// A run that is not over by then makes no progress.
const PATIENCE: u64 = 12_000 * MS;
const TICK: u64 = 20 * MS;
const SNAPSHOT_EVERY: Clock = 3;

const TIMING: Timing = Timing {
    lease: Duration::from_millis(300),
    heartbeat: Duration::from_millis(60),
    retry: Duration::from_millis(80),
    drift: 20,
    gather: Duration::from_millis(200),
};

type Storage = Arc<Mutex<BTreeMap<(Clock, ShardId), Snapshot>>>;

/// A process and its circumstances.
struct Process {
    life: u64,
    machine: Machine,
    paused_until: u64,
    offset: u64,    // of its clock, in microseconds
    per_mille: u64, // the speed of its clock
    adopted: Epoch, // the view by which it was last seen to act
    leaving: bool,  // it has asked to go
    gone: bool,     // it was let go and does not come back
}

enum Machine {
    Down,
    Candidate,
    Coordinator(Box<Leader>),
    Server(Box<Server>),
    Worker(Box<Session>, BTreeMap<Slot, Vec<Reads>>),
}

/// The coordinator, for as long as it leads.
struct Leader {
    coordinator: Coordinator,
    stored: Durable,                // as far as it knows
    election: Option<(Term, Time)>, // until when it believes to lead, by its own clock
    storing: Option<Vec<Outgoing>>, // what it says once the store has answered; it does nothing before
}

enum Happening {
    Deliver { from: Peer, to: Node, life: u64, message: Box<Message> },
    Tick(Node, u64),
    Fault(usize),
    Lost,
    Restart(Node),
    Stored(Node, u64),
    Named(Node, u64),
    Computed { node: Node, life: u64, slot: Slot, clock: Clock },
}

pub struct World {
    schedule: Schedule,
    program: Program,
    plan: Arc<Plan>,
    now: u64,
    queue: BinaryHeap<Entry>,
    next: u64,
    draw: Draw,
    processes: BTreeMap<Node, Process>,
    addresses: BTreeMap<Peer, (Node, u64)>,
    store: Store,
    storage: Storage,
    lives: u64,
    checks: Checks,
    events: u64,
    links: BTreeMap<(Node, Node, u64), Link>, // from a process to a life of another
    broken: Option<Violation>,                // by what was sent
}

/// What a process still has to write to another: one thing after the other, each as long as it is large.
#[derive(Default)]
struct Link {
    free_at: u64,
    states: Vec<(u64, ShardId)>, // whole states, and when they will have left
}

/// In order of time, then of making.
struct Entry(u64, u64, Happening);

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        (self.0, self.1) == (other.0, other.1)
    }
}
impl Eq for Entry {}
impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        (other.0, other.1).cmp(&(self.0, self.1))
    }
}

/// What a run came to.
#[derive(Debug, Clone, Default)]
pub struct Outcome {
    /// How many things happened.
    pub events: u64,
    /// How often each invariant was put to the test.
    pub tested: BTreeMap<u32, u64>,
    /// How often a shard got another head, how often the run was restored by hand, and how often it went back to a
    /// snapshot by itself.
    pub failovers: [u64; 3],
}

impl World {
    pub fn new(schedule: &Schedule, mechanisms: Mechanisms) -> Self {
        let (n_slots, n_shards) = (schedule.n_slots as usize, schedule.n_shards as usize);
        let program = Program::new(schedule.sync, n_slots, n_shards);
        let plan =
            Plan { snapshot_every: Some(SNAPSHOT_EVERY), mechanisms, ..Plan::new(schedule.sync, n_slots) };
        let coordinator = Coordinator::new(size(schedule), TIMING, None, None);
        let checks = Checks::new(program.clone(), schedule.sync, n_slots);
        let mut world = Self {
            schedule: schedule.clone(),
            program,
            plan: Arc::new(plan),
            now: 0,
            queue: BinaryHeap::new(),
            next: 0,
            draw: Draw::new(schedule.seed, 2),
            processes: BTreeMap::new(),
            addresses: BTreeMap::new(),
            store: Store::new(coordinator.durable().clone(), mechanisms.store_fencing),
            storage: Storage::default(),
            lives: 0,
            checks,
            events: 0,
            links: BTreeMap::new(),
            broken: None,
        };
        let servers = (0..schedule.n_servers).map(Node::Server);
        let workers = (0..schedule.n_workers).map(Node::Worker);
        for node in servers.chain(workers).chain((0..schedule.n_coordinators).map(Node::Coordinator)) {
            world.add(node);
        }
        for (i, fault) in schedule.faults.iter().enumerate() {
            world.push(fault.at * MS, Happening::Fault(i));
        }
        world
    }

    /// Runs to the end, or to the first broken promise.
    pub fn run(mut self) -> Result<Outcome, Violation> {
        while let Some(Entry(at, _, happening)) = self.queue.pop() {
            self.now = at;
            self.events += 1;
            self.happen(happening)?;
            self.broken.take().map_or(Ok(()), Err)?;
            if self.events.is_multiple_of(64) && self.finished() {
                self.check_end()?;
                return Ok(Outcome {
                    events: self.events,
                    tested: self.checks.tested,
                    failovers: self.checks.failovers,
                });
            }
            if self.now > PATIENCE {
                break;
            }
        }
        Err(Violation { invariant: 5, what: format!("no end after {} ms: {}", self.now / MS, self.waits()) })
    }

    fn push(&mut self, at: u64, happening: Happening) {
        self.next += 1;
        self.queue.push(Entry(at, self.next, happening));
    }

    fn add(&mut self, node: Node) {
        let (offset, per_mille) = (self.draw.below(1_000_000_000), 975 + self.draw.below(51));
        let process = Process {
            life: 0,
            machine: Machine::Down,
            paused_until: 0,
            offset,
            per_mille,
            adopted: Epoch(0),
            leaving: false,
            gone: false,
        };
        self.processes.insert(node, process);
        self.start(node);
    }

    /// Begins a new life of a process.
    fn start(&mut self, node: Node) {
        self.lives += 1;
        let life = self.lives;
        let now = self.local(node);
        let (name, address) = (node.to_string(), String::new());
        // Of different sizes, so that heads that are even by number are not by bytes.
        let shard_bytes = (1..=self.schedule.n_shards).map(|n| u64::from(n) << 20).collect();
        let join = |role| {
            let (host, settings) = (String::new(), Settings::new());
            Join { role, nonce: life, name, address, restored: None, shard_bytes, host, settings }
        };
        let machine = match node {
            Node::Coordinator(_) if self.schedule.n_coordinators > 1 => Machine::Candidate,
            Node::Coordinator(_) => Machine::Coordinator(self.leader(now, None)),
            Node::Server(_) => {
                let storage = self.storage.clone();
                let source: Source = Arc::new(move |shard, clock| {
                    storage.lock().expect("one thread").get(&(clock, shard)).cloned()
                });
                Machine::Server(Box::new(Server::new(self.plan.clone(), TIMING, join(Role::Server), source)))
            }
            Node::Worker(_) => {
                let tables = self.program.parts();
                let session = Session::new(self.schedule.sync, TIMING, join(Role::Worker), tables);
                Machine::Worker(Box::new(session), BTreeMap::new())
            }
        };
        let process = self.processes.get_mut(&node).expect("it was added");
        (process.life, process.machine, process.leaving) = (life, machine, false);
        self.addresses.insert(Peer::Newcomer(life), (node, life));
        if let Machine::Coordinator(_) = self.processes[&node].machine {
            self.addresses.insert(Peer::Coordinator, (node, life));
        }
        self.push(self.now + life % 7 * MS, Happening::Tick(node, life));
    }

    /// A coordinator that goes on from what is stored.
    fn leader(&self, now: Time, election: Option<(Term, Time)>) -> Box<Leader> {
        let durable = self.store.durable().clone();
        let coordinator = Coordinator::recover(size(&self.schedule), TIMING, durable.clone(), now);
        Box::new(Leader { coordinator, stored: durable, election, storing: None })
    }

    /// The time on a process's own clock.
    fn local(&self, node: Node) -> Time {
        let p = &self.processes[&node];
        Duration::from_micros(p.offset + self.now * p.per_mille / 1000)
    }

    fn happen(&mut self, happening: Happening) -> Result<(), Violation> {
        match happening {
            Happening::Fault(i) => self.fault(&self.schedule.faults[i].what.clone()),
            Happening::Lost => self.restore(),
            Happening::Restart(node) => {
                if matches!(self.processes[&node].machine, Machine::Down) && !self.processes[&node].gone {
                    self.start(node);
                }
            }
            Happening::Named(node, life) => {
                let process = &self.processes[&node];
                if process.life == life && matches!(process.machine, Machine::Coordinator(_)) {
                    self.addresses.insert(Peer::Coordinator, (node, life));
                }
            }
            Happening::Deliver { to, life, .. }
            | Happening::Tick(to, life)
            | Happening::Stored(to, life)
            | Happening::Computed { node: to, life, .. } => {
                let process = &self.processes[&to];
                if process.life != life || matches!(process.machine, Machine::Down) {
                    return Ok(());
                }
                if process.paused_until > self.now {
                    let at = process.paused_until;
                    self.push(at, happening);
                    return Ok(());
                }
                if let Happening::Stored(..) = happening {
                    return self.stored(to);
                }
                // It waits for the store, and for nothing else.
                if matches!(&process.machine, Machine::Coordinator(leader) if leader.storing.is_some()) {
                    self.push(self.now + MS, happening);
                    return Ok(());
                }
                return self.act(to, happening);
            }
        }
        Ok(())
    }

    /// One step of one process.
    fn act(&mut self, node: Node, happening: Happening) -> Result<(), Violation> {
        let now = self.local(node);
        let tick = matches!(happening, Happening::Tick(..));
        if let Node::Coordinator(_) = node {
            self.elect(node, tick);
        }
        let saved = if tick { self.whole() } else { None };
        let sending = if tick { self.sending(node) } else { BTreeSet::new() };
        let process = self.processes.get_mut(&node).expect("looked up above");
        let life = process.life;
        let (mut events, mut news) = (Vec::new(), Vec::new());
        match &mut process.machine {
            Machine::Server(s) if tick => s.sending(sending),
            Machine::Worker(s, _) if tick => {
                s.sending(&sending, now);
                news = s.saved(saved, now);
            }
            _ => {}
        }
        let out = match (&mut process.machine, happening) {
            (Machine::Coordinator(c), Happening::Deliver { from, message, .. }) => match *message {
                Message::FromMember(message) => said(c.coordinator.handle(from, message, now)),
                _ => Vec::new(),
            },
            (Machine::Coordinator(c), _) => said(c.coordinator.tick(now)),
            (Machine::Server(s), Happening::Deliver { from, message, .. }) => s.handle(from, *message, now),
            (Machine::Server(s), _) => s.tick(now),
            (Machine::Worker(s, _), Happening::Deliver { from, message, .. }) => {
                let (out, found) = s.handle(from, *message, now);
                events = found;
                out
            }
            (Machine::Worker(s, reads), Happening::Computed { slot, clock, .. }) => {
                match (reads.remove(&slot), s.id()) {
                    (Some(reads), Some(id)) => {
                        self.checks.begins(id, slot);
                        s.call(slot, self.program.push(slot, clock, &reads), now)
                    }
                    _ => Vec::new(),
                }
            }
            (Machine::Worker(s, _), _) => s.tick(now),
            (Machine::Down | Machine::Candidate, _) => Vec::new(),
        };
        if tick {
            self.push(self.now + TICK, Happening::Tick(node, life));
        }
        let out = [news, out].concat();
        self.look(node, &out)?;
        let out = self.once_stored(node, out)?;
        self.send(node, out);
        for event in events {
            self.worker_event(node, event)?;
        }
        Ok(())
    }

    /// Looks at a process after its step, before anything leaves it.
    fn look(&mut self, node: Node, out: &[Outgoing]) -> Result<(), Violation> {
        let process = self.processes.get_mut(&node).expect("it has just acted");
        match &mut process.machine {
            Machine::Coordinator(_) | Machine::Candidate => {}
            Machine::Server(s) => {
                if s.view().epoch != process.adopted {
                    process.adopted = s.view().epoch;
                    self.checks.adopted(node, s.view())?;
                }
                self.checks.server(s, out)?;
                // Who does not know yet that the run was taken back saves what is worth nothing.
                let past = self.checks.is_past(s.view().epoch);
                for (shard, snapshot) in s.take_snapshots().into_iter().filter(|_| !past) {
                    let state = State::restored(self.plan.clone(), snapshot.clone());
                    self.checks.snapshot(shard, snapshot.clock, &state)?;
                    self.storage.lock().expect("one thread").insert((snapshot.clock, shard), snapshot);
                }
                if let Some(id) = s.id() {
                    self.addresses.insert(Peer::Server(id), (node, process.life));
                }
                if s.expelled() || s.unwelcome().is_some() {
                    process.gone = process.leaving;
                    process.machine = Machine::Down;
                    self.push(self.now + 10 * MS, Happening::Restart(node));
                }
            }
            Machine::Worker(s, _) => {
                if s.view().epoch != process.adopted {
                    process.adopted = s.view().epoch;
                    self.checks.adopted(node, s.view())?;
                }
                if let Some(id) = s.id() {
                    self.addresses.insert(Peer::Worker(id), (node, process.life));
                }
            }
            Machine::Down => {}
        }
        Ok(())
    }

    /// A candidate tries to lead; a leader that cannot be sure of its place gives it up.
    fn elect(&mut self, node: Node, tick: bool) {
        let now = self.local(node);
        // Short of the lease by more than two clocks may differ in speed.
        let believed = now + Duration::from_micros(election::LEASE - election::LEASE / 10);
        let reaches = !self.cut_off(node);
        let (life, machine) = {
            let process = self.processes.get_mut(&node).expect("looked up above");
            (process.life, &mut process.machine)
        };
        match machine {
            Machine::Candidate if tick && reaches => {
                let Some(term) = self.store.campaign(self.now) else { return };
                let leader = self.leader(now, Some((term, believed)));
                self.processes.get_mut(&node).expect("looked up above").machine =
                    Machine::Coordinator(leader);
                // The others hear of it, each in its time.
                let at = self.now + self.draw.below(50 * MS);
                self.push(at, Happening::Named(node, life));
            }
            Machine::Coordinator(leader) => {
                let Some((term, until)) = &mut leader.election else { return };
                // Who was late to ask stays deposed, whatever the store says.
                let in_time = now < *until;
                if in_time && tick && reaches && self.store.keep_alive(*term, self.now) {
                    *until = believed;
                } else if !in_time || (tick && reaches) {
                    *machine = Machine::Candidate;
                }
            }
            _ => {}
        }
    }

    /// What a coordinator says leaves it once what it must remember is stored: in a file at once, in a store that others
    /// write too after a while.
    fn once_stored(&mut self, node: Node, out: Vec<Outgoing>) -> Result<Vec<Outgoing>, Violation> {
        let process = self.processes.get_mut(&node).expect("it has just acted");
        let life = process.life;
        let Machine::Coordinator(leader) = &mut process.machine else { return Ok(out) };
        if *leader.coordinator.durable() == leader.stored {
            return Ok(out);
        }
        leader.storing = Some(out);
        if leader.election.is_none() {
            self.stored(node)?;
            return Ok(Vec::new());
        }
        let at = self.now + self.draw.below(4 * MS) + if self.draw.happens(100) { 200 * MS } else { 0 };
        self.push(at, Happening::Stored(node, life));
        Ok(Vec::new())
    }

    /// What a coordinator must remember reaches the store.
    fn stored(&mut self, node: Node) -> Result<(), Violation> {
        let process = self.processes.get_mut(&node).expect("it waits for this");
        let Machine::Coordinator(leader) = &mut process.machine else { return Ok(()) };
        let Some(out) = leader.storing.take() else { return Ok(()) };
        let (durable, before) = (leader.coordinator.durable().clone(), leader.stored.view.clone());
        leader.stored = durable.clone();
        let term = leader.election.map(|(term, _)| term);
        if term.is_some_and(|term| !self.store.write(term, &durable, self.now)) {
            process.machine = Machine::Candidate;
            return Ok(());
        }
        if term.is_none() {
            self.store.replace(durable.clone());
        }
        if durable.view.epoch != before.epoch {
            self.checks.view(&durable.view)?;
        }
        if let (false, [], Some(clock)) =
            (before.shards.is_empty(), &durable.view.shards[..], durable.view.restored)
        {
            self.checks.restored(clock, durable.view.epoch, SessionId(durable.next_id));
            self.checks.failovers[2] += 1;
            self.storage.lock().expect("one thread").retain(|(c, _), _| *c <= clock);
        }
        if durable.view.lost().is_some() && before.lost().is_none() {
            self.push(self.now, Happening::Lost);
        }
        self.send(node, out);
        Ok(())
    }

    fn worker_event(&mut self, node: Node, event: Event) -> Result<(), Violation> {
        let now = self.local(node);
        let process = self.processes.get_mut(&node).expect("it has just acted");
        let life = process.life;
        let Machine::Worker(session, held) = &mut process.machine else { return Ok(()) };
        let mut out = Vec::new();
        if let Event::Ended(_) = event {
            process.gone = process.leaving;
            process.machine = Machine::Down;
            self.push(self.now + 10 * MS, Happening::Restart(node));
            return Ok(());
        }
        let id = session.id().expect("only members have other events");
        match event {
            Event::Gained { slot, clock } if clock < self.schedule.clocks => {
                self.checks.begins(id, slot);
                out = session.call(slot, self.program.pull(), now);
            }
            Event::Gained { .. } | Event::Kept => {}
            Event::Dropped { slot } => drop(held.remove(&slot)),
            Event::Done { slot, asked, clock, pushed, reads } => {
                let reads: Vec<Reads> = reads.into_iter().flatten().collect();
                self.checks.done(id, slot, asked, &pushed)?;
                self.checks.read(id, slot, clock, &reads)?;
                if clock < self.schedule.clocks {
                    held.insert(slot, reads);
                    let at = self.now + 500 + self.draw.below(60 * MS);
                    self.push(at, Happening::Computed { node, life, slot, clock });
                }
            }
            Event::Refused { slot, refusal } => {
                // A worker is ahead of a shard only when the shard forgot what it had acknowledged.
                let forgot = matches!(refusal, Refusal::Clock { want, got } if got > want);
                let what = format!("{slot} of {id} was refused: {refusal}");
                return Err(Violation { invariant: if forgot { 2 } else { 5 }, what });
            }
            Event::Ended(_) => unreachable!("handled above"),
        }
        self.send(node, out);
        Ok(())
    }

    /// Puts messages on the network, which may lose, repeat and delay them.
    fn send(&mut self, from: Node, out: Vec<Outgoing>) {
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
    fn sending(&self, from: Node) -> BTreeSet<Peer> {
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
    fn cut_off(&self, node: Node) -> bool {
        self.schedule.faults.iter().any(|fault| match &fault.what {
            What::Partition(side, ms) => {
                side.contains(&node) && (fault.at * MS..(fault.at + ms) * MS).contains(&self.now)
            }
            _ => false,
        })
    }

    fn fault(&mut self, what: &What) {
        match what {
            What::Crash(node, ms) => {
                if let Some(process) = self.processes.get_mut(node) {
                    process.machine = Machine::Down;
                    self.push(self.now + ms * MS, Happening::Restart(*node));
                }
            }
            What::Pause(node, ms) => {
                if let Some(process) = self.processes.get_mut(node) {
                    process.paused_until = process.paused_until.max(self.now + ms * MS);
                }
            }
            What::Arrive(node) => {
                if !self.processes.contains_key(node) {
                    self.add(*node);
                }
            }
            What::Leave(node) => self.leave(*node),
            What::Partition(..) | What::Cut(..) => {}
        }
    }

    fn leave(&mut self, node: Node) {
        // Somebody must stay to do the work.
        let same = |n: &Node| std::mem::discriminant(n) == std::mem::discriminant(&node);
        let others = self.processes.iter().filter(|(n, p)| same(n) && !p.leaving).count();
        if others < 2 {
            return;
        }
        let now = self.local(node);
        let Some(process) = self.processes.get_mut(&node) else { return };
        process.leaving = true;
        let out = match &mut process.machine {
            Machine::Server(s) => {
                s.leave();
                Vec::new()
            }
            Machine::Worker(s, _) => s.leave(now),
            _ => Vec::new(),
        };
        self.send(node, out);
    }

    /// The clock of the newest snapshot that all shards have saved.
    fn whole(&self) -> Option<Clock> {
        let storage = self.storage.lock().expect("one thread");
        let n_shards = self.schedule.n_shards as usize;
        let mut by_clock: BTreeMap<Clock, usize> = BTreeMap::new();
        storage.keys().for_each(|(clock, _)| *by_clock.entry(*clock).or_default() += 1);
        by_clock.into_iter().rev().find(|(_, n)| *n == n_shards).map(|(clock, _)| clock)
    }

    /// All copies of a shard are gone, and nobody has told the coordinator of a whole snapshot: everything starts again from the last whole snapshot.
    fn restore(&mut self) {
        let restored = self.whole();
        let clock = restored.unwrap_or(0);
        self.storage.lock().expect("one thread").retain(|(c, _), _| *c <= clock);
        let n_servers =
            self.processes.iter().filter(|(n, p)| matches!(n, Node::Server(_)) && !p.gone).count();
        let size = Size { n_servers, ..size(&self.schedule) };
        self.schedule.n_servers = n_servers as u32;
        let durable = Coordinator::new(size, TIMING, restored, Some(self.store.durable())).durable().clone();
        self.checks.restored(clock, durable.view.epoch, SessionId(durable.next_id));
        self.checks.failovers[1] += 1;
        self.store.replace(durable);
        let nodes: Vec<Node> =
            self.processes.keys().copied().filter(|n| !matches!(n, Node::Worker(_))).collect();
        for node in nodes {
            self.processes.get_mut(&node).expect("just listed").machine = Machine::Down;
            self.push(self.now + 5 * MS, Happening::Restart(node));
        }
    }

    /// The head's state of a shard, in the newest view.
    fn head_state(&self, shard: ShardId) -> Option<&State> {
        let view = &self.store.durable().view;
        let head = view.head(shard)?;
        self.processes.values().find_map(|p| match &p.machine {
            Machine::Server(s) if s.id() == Some(head) && s.view().epoch == view.epoch => {
                s.replicas().find(|(id, _)| *id == shard)?.1.state()
            }
            _ => None,
        })
    }

    fn finished(&self) -> bool {
        let shards = (0..self.schedule.n_shards).map(ShardId);
        let faults_over = self.schedule.faults.last().is_none_or(|f| f.at * MS < self.now);
        let mut states = shards.map(|shard| self.head_state(shard));
        faults_over
            && states.all(|s| s.is_some_and(|s| s.version() >= self.schedule.clocks))
            && self.answered()
            && placement::is_settled(&self.store.durable().view, self.schedule.replicas as usize)
    }

    /// Whether no call waits for an answer any more: not by a worker's account, nor by a server's.
    fn answered(&self) -> bool {
        self.processes.values().all(|p| match &p.machine {
            Machine::Worker(s, _) => s.waiting_for().is_empty(),
            Machine::Server(s) => s.replicas().all(|(_, replica)| replica.held()[0] == 0),
            Machine::Coordinator(_) | Machine::Candidate | Machine::Down => true,
        })
    }

    fn check_end(&mut self) -> Result<(), Violation> {
        for shard in (0..self.schedule.n_shards).map(ShardId) {
            let state = self.head_state(shard).expect("finished looked at it").clone();
            self.checks.end(shard, self.schedule.clocks, &state)?;
        }
        Ok(())
    }

    /// Who waits for what, for the report of a run that makes no progress.
    fn waits(&self) -> String {
        let waits = self.processes.iter().filter_map(|(node, p)| match &p.machine {
            Machine::Worker(s, _) if !s.waiting_for().is_empty() => {
                Some(format!("{node} waits for {}", s.waiting_for()))
            }
            // What it holds back, and for whom.
            Machine::Server(s) => Some(format!("{node}: {s:?}")),
            Machine::Down => Some(format!("{node} is down")),
            _ => None,
        });
        format!("{}; {:?}", waits.collect::<Vec<_>>().join("; "), self.store.durable().view)
    }
}

fn said(out: Vec<Said>) -> Vec<Outgoing> {
    out.into_iter().map(|(to, message)| (to, message.into())).collect()
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

fn size(schedule: &Schedule) -> Size {
    Size {
        n_servers: schedule.n_servers as usize,
        n_workers: schedule.n_workers as usize,
        n_shards: None, // the servers say
        n_slots: schedule.n_slots as usize,
        replicas: schedule.replicas as usize,
    }
}
