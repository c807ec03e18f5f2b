//! The simulated cluster: processes, their clocks, and a network that does what the schedule says.

mod coordinators;
mod end;
mod faults;
mod network;

use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use self::network::Link;
use super::check::{Checks, Violation};
use super::election::{Store, Term};
use super::program::Program;
use super::schedule::{Draw, Node, Schedule};
use crate::coordinator::{Coordinator, Durable, Said, Size};
use crate::error::Refusal;
use crate::ids::{Clock, Epoch, Peer, ShardId, Slot};
use crate::mechanisms::Mechanisms;
use crate::message::{Join, Message, Outgoing, Role, Settings, Time};
use crate::server::{Server, Source};
use crate::session::{Event, Session};
use crate::state::{Plan, Reads, Snapshot, State};
use crate::view::Timing;

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
}

fn said(out: Vec<Said>) -> Vec<Outgoing> {
    out.into_iter().map(|(to, message)| (to, message.into())).collect()
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
