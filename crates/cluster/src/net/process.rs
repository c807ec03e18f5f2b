//! The processes of a cluster: coordinator, server, and a worker's session, each on sockets.

use std::collections::{BTreeSet, VecDeque};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::config::Config;
use super::control::{self, Unreached};
use super::handshake::random;
use super::membership::Memory;
use super::node::{Machine, Node, Trouble};
use super::silence::Silent;
use super::told::{AllTold, Told};
use super::waits::{self, TOLD, Waits, Wrong};
use crate::coordinator::{Coordinator, Durable, Said};
use crate::doing::Doing;
use crate::error::ClusterError;
use crate::ids::{Clock, Peer, RunId, ServerId, Slot};
use crate::message::{Activity, Counts, FromMember, Join, Message, Outgoing, Role, Time, ToMember};
use crate::report::{Report, Standing, holds};
use crate::rule::Registry;
use crate::server::{Server, Source};
use crate::session::{Event, Session};
use crate::state::{Parts, Plan};
use crate::storage::{Saver, Storage};
use crate::view::Lease;

/// Between two looks at whether to end.
const LOOK: Duration = Duration::from_millis(20);
/// How long a coordinator that nobody ends waits for the last servers to go.
const LAST: Duration = Duration::from_secs(5);
/// How long a coordinator that was asked to go together with everybody else waits for the workers.
const STAYS: Duration = Duration::from_secs(60);
/// A server that was asked to go has nobody to hand over to when the coordinator was silent for so long.
pub(crate) const ALONE: Duration = Duration::from_secs(2);
/// The status with which a worker or server ends that was asked to, before the work was done, and has left in good order.
/// It is that of `EX_TEMPFAIL`: nothing is wrong, and somebody else goes on. `thalweg launch` goes on without it.
pub const LEFT: i32 = 75;

/// Why a server has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// The workers are done.
    Done,
    /// It was asked to go.
    Asked,
}

/// The coordinator with its memory and what it was last told by everybody.
pub struct CoordinatorProcess {
    coordinator: Coordinator,
    memory: Box<dyn Memory>,
    stored: Option<Durable>,
    problem: Option<String>, // why it could not be stored
    told: AllTold,
    silent: Silent,
    patience: Duration,
}

impl Machine for CoordinatorProcess {
    fn handle(&mut self, from: Peer, message: Message, now: Time) -> Vec<Outgoing> {
        if !self.leads() {
            return Vec::new();
        }
        let Message::FromMember(message) = message else { return Vec::new() };
        if let FromMember::Heartbeat(h) = &message {
            self.told.hear(from, h, now);
            self.silent.hear(from, now);
        }
        let mut out = self.coordinator.handle(from, message, now);
        for (to, said) in out.iter_mut().filter(|(to, _)| *to == from) {
            if let ToMember::Grant { held, .. } = said {
                *held = self.told.held(self.coordinator.view(), *to, now);
            }
        }
        self.once_stored(out)
    }

    fn connected(&mut self, to: BTreeSet<Peer>) {
        self.silent.connected(to);
    }

    fn tick(&mut self, now: Time) -> Vec<Outgoing> {
        if !self.leads() {
            return Vec::new();
        }
        let mut out = self.coordinator.tick(now);
        self.told.retain(self.coordinator.view());
        for server in self.silent.look(self.coordinator.view(), now) {
            out.extend(self.coordinator.gone(Peer::Server(server), now));
        }
        self.once_stored(out)
    }

    fn reconnected(&mut self, peer: Peer, _now: Time) -> Vec<Outgoing> {
        self.coordinator.part(peer);
        Vec::new()
    }

    fn status(&mut self, now: Time) -> Option<Report> {
        self.leads().then(|| self.report(now))
    }

    fn me(&self) -> Peer {
        Peer::Coordinator
    }

    fn address(&self, _server: ServerId) -> Option<String> {
        None
    }

    fn over(&self) -> bool {
        false
    }
}

impl CoordinatorProcess {
    /// A new one, or one that goes on from what is remembered.
    pub fn new(config: &Config, mut memory: Box<dyn Memory>) -> Result<Self, ClusterError> {
        let stored = memory.load()?;
        let (size, timing) = (config.size.clone(), config.timing);
        let coordinator = match stored.clone() {
            Some(durable) => Coordinator::recover(size, timing, durable, Time::ZERO),
            None => Coordinator::new(size, timing, None, None).numbered(RunId(u64::from_le_bytes(random()))),
        };
        Ok(Self {
            coordinator,
            memory,
            stored,
            problem: None,
            told: AllTold::default(),
            silent: Silent::new(config),
            patience: config.timing.patience(),
        })
    }

    /// Whether this process is still the coordinator.
    pub fn leads(&self) -> bool {
        self.memory.leads()
    }

    /// What must outlive a crash is stored before any message of the step leaves. A coordinator that cannot keep its
    /// promises over a crash makes none: what it would have said is asked for again.
    fn once_stored(&mut self, out: Vec<Said>) -> Vec<Outgoing> {
        let out = out.into_iter().map(|(to, message)| (to, message.into())).collect();
        let durable = self.coordinator.durable();
        if self.stored.as_ref() == Some(durable) {
            return out;
        }
        let problem = self.memory.store(durable).err().map(|e| e.to_string());
        if problem.is_some() && problem != self.problem {
            eprintln!("coordinator: cannot store the view: {}", problem.as_deref().unwrap_or_default());
        }
        self.problem = problem;
        if self.problem.is_some() {
            return Vec::new();
        }
        let before = self.stored.as_ref().is_some_and(|stored| !stored.view.shards.is_empty());
        if let (true, [], Some(clock)) = (before, &durable.view.shards[..], durable.view.restored) {
            eprintln!("coordinator: shards were lost; the run goes back to the checkpoint at clock {clock}");
        }
        self.stored = Some(durable.clone());
        out
    }

    /// Whether the last sign of life of every server is too old. The last ones have nobody to hand over to, and go
    /// without a word.
    fn is_deserted(&self, now: Time) -> bool {
        let long = |told: &Told| now.saturating_sub(told.at) > self.patience;
        let servers = self.coordinator.view().servers.keys().map(|id| Peer::Server(*id));
        servers.into_iter().all(|server| self.told.get(server).is_none_or(long))
    }

    /// What is known of every process.
    pub fn report(&mut self, now: Time) -> Report {
        let view = self.coordinator.view().clone();
        let servers = view.servers.iter().map(|(id, m)| (Peer::Server(*id), Role::Server, m));
        let workers = view.workers.iter().map(|(id, m)| (Peer::Worker(*id), Role::Worker, m));
        let members = servers.chain(workers).map(|(peer, role, member)| {
            let mut told = self.told.progress(&view, peer, now);
            if let (Some(told), true) = (&mut told, self.silent.has_told(peer)) {
                told.waiting_for = "SILENT, and nobody else has all of its shards".into();
            }
            let (name, host) = (member.name.clone(), member.host.clone());
            Standing { name, role, host, holds: holds(&view, peer), told }
        });
        let (epoch, n_shards, n_slots) = (view.epoch, view.shards.len() as u32, view.slots.len() as u32);
        Report { epoch, n_shards, n_slots, members: members.collect() }
    }
}

impl CoordinatorProcess {
    /// The same for Prometheus, in its text format.
    pub fn metrics(&self, now: Time) -> String {
        let view = self.coordinator.view();
        let mut text = String::new();
        let servers = view.servers.iter().map(|(id, m)| (Peer::Server(*id), &m.name, "server"));
        let workers = view.workers.iter().map(|(id, m)| (Peer::Worker(*id), &m.name, "worker"));
        let members: Vec<_> = servers.chain(workers).collect();
        type Value = fn(&Told, Time) -> f64;
        let families: [(&str, &str, &str, Value); 6] = [
            ("clock", "gauge", "Lowest clock of its slots or shards.", |t, _| t.clock as f64),
            ("staleness", "gauge", "Clocks by which its last read lagged.", |t, _| t.counts.staleness as f64),
            ("received_bytes_total", "counter", "Bytes received.", |t, _| t.counts.received as f64),
            ("sent_bytes_total", "counter", "Bytes sent.", |t, _| t.counts.sent as f64),
            ("waited_seconds_total", "counter", "Time spent waiting.", |t, _| t.counts.waited.as_secs_f64()),
            ("silence_seconds", "gauge", "Since it was last heard of.", |t, now| (now - t.at).as_secs_f64()),
        ];
        text += "# HELP thalweg_epoch Number of the view.\n# TYPE thalweg_epoch gauge\n";
        text += &format!("thalweg_epoch {}\n", view.epoch.0);
        for (name, kind, help, value) in families {
            text += &format!("# HELP thalweg_{name} {help}\n# TYPE thalweg_{name} {kind}\n");
            for (peer, process, role) in &members {
                if let Some(told) = self.told.get(*peer) {
                    let process = process.replace(['\\', '"', '\n'], "_");
                    let labels = format!("process=\"{process}\",role=\"{role}\"");
                    text += &format!("thalweg_{name}{{{labels}}} {}\n", value(told, now));
                }
            }
        }
        text
    }
}

/// A server that begins a new life when it was expelled without having asked for it.
pub struct ServerProcess {
    server: Server,
    plan: Arc<Plan>,
    config: Config,
    address: String,
    leaving: bool,
    storage: Option<Storage>,
    saver: Option<Saver>,
    troubles: Vec<(String, Trouble)>,
}

impl ServerProcess {
    /// A server that others reach at this address.
    pub fn new(config: &Config, registry: Registry, storage: Option<Storage>, address: String) -> Self {
        let snapshot_every = storage.as_ref().map(|s| s.every);
        let plan = Plan { registry, snapshot_every, ..Plan::new(config.sync, config.size.n_slots) };
        let plan = Arc::new(plan);
        let server = Self::life(&plan, config, storage.as_ref(), &address);
        let saver = storage.as_ref().map(|s| Saver::new(&config.name, s.save.clone()));
        let (leaving, troubles) = (false, Vec::new());
        Self { server, plan, config: config.clone(), address, leaving, storage, saver, troubles }
    }

    fn life(plan: &Arc<Plan>, config: &Config, storage: Option<&Storage>, address: &str) -> Server {
        let join = join(Role::Server, config, address, storage.and_then(|s| s.restored));
        let source = storage.map_or_else(|| -> Source { Arc::new(|_, _| None) }, |s| s.load.clone());
        Server::new(plan.clone(), config.timing, join, source)
    }

    /// The first of each chain saves its shard.
    fn save(&mut self) {
        for (shard, snapshot) in self.server.take_snapshots() {
            let heads = self.server.id().is_some() && self.server.view().head(shard) == self.server.id();
            if let Some(saver) = self.saver.as_ref().filter(|_| heads) {
                saver.add(shard, snapshot);
            }
        }
    }

    /// What saves; to be waited for outside of the machine's lock.
    pub(crate) fn take_saver(&mut self) -> Option<Saver> {
        self.saver.take()
    }

    fn reborn(&mut self) {
        if self.server.expelled()
            && !self.leaving
            && self.server.unfit().is_none()
            && !self.server.forgotten()
        {
            self.server = Self::life(&self.plan, &self.config, self.storage.as_ref(), &self.address);
        }
    }

    /// Asks to hand over its shards and go.
    pub fn leave(&mut self) {
        self.leaving = true;
        self.server.leave();
    }

    /// The state machine.
    pub fn server(&self) -> &Server {
        &self.server
    }

    /// Whether another server could take over the shards of this one.
    fn can_hand_over(&self) -> bool {
        let others = self.server.view().servers.iter().filter(|(id, _)| self.server.id() != Some(**id));
        others.into_iter().any(|(_, m)| m.confirmed && !m.leaving)
    }

    fn wrong(&self, silence: Duration, problem: Option<String>) -> Wrong {
        Wrong { silence, problem, troubles: self.troubles.clone(), ..Wrong::default() }
    }
}

impl Machine for ServerProcess {
    fn handle(&mut self, from: Peer, message: Message, now: Time) -> Vec<Outgoing> {
        let out = self.server.handle(from, message, now);
        self.save();
        self.reborn();
        waits::told(out, &self.troubles, "", &Activity::default())
    }

    fn tick(&mut self, now: Time) -> Vec<Outgoing> {
        waits::told(self.server.tick(now), &self.troubles, "", &Activity::default())
    }

    fn troubled(&mut self, troubles: Vec<Trouble>) {
        self.troubles = waits::named(self.server.view(), troubles);
    }

    fn count(&mut self, received: u64, sent: u64) {
        self.server.count(Counts { received, sent, ..Counts::default() });
    }

    fn reconnected(&mut self, peer: Peer, now: Time) -> Vec<Outgoing> {
        self.server.reconnected(peer, now)
    }

    fn sending(&mut self, to: BTreeSet<Peer>, _now: Time) {
        self.server.sending(to);
    }

    fn release(&mut self, out: &mut [Outgoing], now: Time) {
        self.server.release(out, now);
    }

    fn lease(&self) -> Option<(Lease, Duration)> {
        Some((self.server.lease().clone(), self.config.timing.lease))
    }

    fn me(&self) -> Peer {
        self.server.id().map_or(Peer::Newcomer(self.server.nonce()), Peer::Server)
    }

    fn address(&self, server: ServerId) -> Option<String> {
        self.server.view().servers.get(&server).map(|m| m.address.clone())
    }

    fn over(&self) -> bool {
        // A cluster without workers has nothing to hand over to.
        let idle = self.server.view().workers.is_empty();
        self.leaving && (self.server.expelled() || idle)
    }
}

/// Who else could do what a worker does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Among {
    /// It takes part in nothing yet, or has nothing to do.
    Nobody,
    /// There are other workers.
    Others,
    /// It is the only one, and has slots.
    Last,
}

/// A worker's session, and what has happened to it.
pub struct WorkerProcess {
    session: Session,
    config: Config,
    tables: Vec<Arc<Parts>>,
    events: VecDeque<Event>,
    troubles: Vec<(String, Trouble)>,
    joined: Option<Time>, // when it was let in
    held: Option<String>, // whom the round waits for, as the coordinator last said
    /// Time spent waiting for others.
    pub waited: Duration,
    /// What the worker does.
    pub doing: Doing,
}

impl WorkerProcess {
    /// A worker with these tables, by shard.
    pub fn new(config: &Config, tables: Vec<Arc<Parts>>) -> Self {
        let session = Self::life(config, &tables);
        Self {
            session,
            config: config.clone(),
            tables,
            events: VecDeque::new(),
            troubles: Vec::new(),
            joined: None,
            held: None,
            waited: Duration::ZERO,
            doing: Doing::default(),
        }
    }

    fn life(config: &Config, tables: &[Arc<Parts>]) -> Session {
        Session::new(config.sync, config.timing, join(Role::Worker, config, "", None), tables.to_vec())
    }

    /// Whether the slot went to somebody else by what has happened and was not taken yet, even if it has come back.
    pub fn has_dropped(&self, slot: Slot) -> bool {
        self.events.iter().any(|event| matches!(event, Event::Dropped { slot: gone } if *gone == slot))
    }

    /// Who else could do what it does.
    pub(crate) fn among(&self) -> Among {
        let view = self.session.view();
        match self.session.id().filter(|id| view.workers.contains_key(id)) {
            Some(_) if view.workers.len() > 1 => Among::Others,
            Some(me) if !view.slots_of(me).is_empty() => Among::Last,
            _ => Among::Nobody,
        }
    }

    /// Begins a new session after the old one was ended by the coordinator.
    pub fn reborn(&mut self) {
        self.session = Self::life(&self.config, &self.tables);
    }

    /// The state machine.
    pub fn session(&mut self) -> &mut Session {
        &mut self.session
    }

    /// The next of the things that have happened. What came after it is still to be taken, so that
    /// [`has_dropped`](Self::has_dropped) knows of it.
    pub fn take_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Whether the coordinator has taken it out of the view since the events were last taken.
    pub fn has_left(&self) -> bool {
        self.events.iter().any(|e| matches!(e, Event::Ended(_)))
    }

    /// What it waits for that is wrong.
    pub(crate) fn wrong(&self, now: Time, silence: Duration, problem: Option<String>) -> Wrong {
        let lacks = self.lacks().zip(self.joined.map(|at| now.saturating_sub(at)));
        let view = self.session.view();
        let deserted = view.restored.filter(|_| view.servers.is_empty());
        Wrong { silence, problem, troubles: self.troubles.clone(), lacks, deserted, held: self.held.clone() }
    }

    /// Who has never come.
    fn lacks(&self) -> Option<String> {
        let (view, size) = (self.session.view(), &self.config.size);
        let come = view.servers.len();
        let waits = self.session.id().is_some() && view.shards.is_empty();
        waits.then(|| format!("servers to come: {come} of {} have", size.n_servers))
    }
}

impl Machine for WorkerProcess {
    fn handle(&mut self, from: Peer, message: Message, now: Time) -> Vec<Outgoing> {
        if let Message::ToMember(ToMember::Grant { held, .. }) = &message {
            self.held.clone_from(held);
        }
        let (out, events) = self.session.handle(from, message, now);
        self.events.extend(events);
        self.joined = self.session.id().and(self.joined.or(Some(now)));
        waits::told(out, &self.troubles, &self.lacks().unwrap_or_default(), &self.doing.activity())
    }

    fn tick(&mut self, now: Time) -> Vec<Outgoing> {
        let out = self.session.tick(now);
        waits::told(out, &self.troubles, &self.lacks().unwrap_or_default(), &self.doing.activity())
    }

    fn troubled(&mut self, troubles: Vec<Trouble>) {
        self.troubles = waits::named(self.session.view(), troubles);
    }

    fn count(&mut self, received: u64, sent: u64) {
        self.session.count(Counts { received, sent, waited: self.waited, staleness: 0 });
    }

    fn reconnected(&mut self, peer: Peer, now: Time) -> Vec<Outgoing> {
        self.session.reconnected(peer, now)
    }

    fn sending(&mut self, to: BTreeSet<Peer>, now: Time) {
        self.session.sending(&to, now);
    }

    fn me(&self) -> Peer {
        self.session.id().map_or(Peer::Newcomer(self.session.nonce()), Peer::Worker)
    }

    fn address(&self, server: ServerId) -> Option<String> {
        self.session.view().servers.get(&server).map(|m| m.address.clone())
    }

    fn over(&self) -> bool {
        false
    }
}

/// The name of this host, for people to look at.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => std::env::var("HOSTNAME").unwrap_or_default(),
        name => name.to_owned(),
    }
}

fn join(role: Role, config: &Config, address: &str, restored: Option<Clock>) -> Join {
    let (nonce, n_shards) = (u64::from_le_bytes(random()), config.size.n_shards.unwrap_or(0) as u32);
    let (name, address, host) = (config.name.clone(), address.to_owned(), host());
    Join { role, nonce, name, address, restored, n_shards, host, settings: config.settings() }
}

/// Runs the coordinator until the process is asked to end; where it is elected, whenever it is chosen.
pub fn coordinate(config: &Config) -> Result<(), ClusterError> {
    let end = ending(config)?;
    let membership = config.membership();
    loop {
        let (listener, address) = bind(config, &config.coordinator)?;
        let Some(memory) = membership.campaign(&address, &end)? else { return Ok(()) };
        if config.etcd.is_some() {
            println!("coordinator {address} ({})", config.name);
        }
        let process = match CoordinatorProcess::new(config, memory) {
            // Gone again between the election and the first look; so is the place, then.
            Err(e @ ClusterError::Etcd { .. }) => {
                eprintln!("{}: {e}", config.name);
                continue;
            }
            made => made?,
        };
        let node = Node::new(process, membership.clone(), config.security.clone());
        node.coordinate(listener)?;
        if let Some(address) = &config.metrics {
            let served = super::metrics::serve(node.clone(), address);
            // Who led before on this host may still have the port; a cluster does not end for that.
            match served {
                Err(e @ ClusterError::Listen { .. }) if config.etcd.is_some() => {
                    eprintln!("{}: no metrics: {e}", config.name);
                }
                served => served?,
            }
        }
        let deposed = lead(config, &node, &end)?;
        node.lock().memory.resign();
        node.close();
        if !deposed {
            return Ok(());
        }
        eprintln!("{}: not the coordinator any more", config.name);
    }
}

/// Until it has come to its end, or, which is true then, was deposed.
fn lead(config: &Config, node: &Node<CoordinatorProcess>, end: &AtomicBool) -> Result<bool, ClusterError> {
    // When nobody ends it, it stays until the last server has gone, but not for ever.
    let (mut done_for, mut asked) = (Duration::ZERO, None);
    while done_for < LAST {
        std::thread::sleep(LOOK);
        if end.load(Ordering::Relaxed) {
            // Where one signal asks all processes at once, workers need it to leave in good order.
            let since = *asked.get_or_insert_with(Instant::now);
            let waits = config.until_done && !node.lock().coordinator.view().workers.is_empty();
            if !waits || since.elapsed() > STAYS {
                break;
            }
        }
        node.failure().check()?;
        let process = node.lock();
        if !process.leads() {
            return Ok(true);
        }
        let (view, begun) = (process.coordinator.view(), process.coordinator.durable().begun);
        match config.until_done && begun && view.workers.is_empty() {
            true if process.is_deserted(node.now()) => break,
            true => done_for += LOOK,
            false => done_for = Duration::ZERO,
        }
    }
    Ok(false)
}

fn bind(config: &Config, address: &str) -> Result<(TcpListener, String), ClusterError> {
    let listener = config.listen(address)?;
    let failed = |source| ClusterError::Listen { address: address.to_owned(), source };
    let address = config.reached_at(listener.local_addr().map_err(failed)?);
    Ok((listener, address))
}

/// Starts a coordinator's threads on a port of the system's choice, which the configuration learns.
pub fn start_coordinator(config: &mut Config) -> Result<Node<CoordinatorProcess>, ClusterError> {
    let (listener, address) = bind(config, &config.coordinator)?;
    config.coordinator = address.clone();
    let membership = config.membership();
    let memory = membership.campaign(&address, &AtomicBool::new(false))?.expect("nobody ends it");
    let node = Node::new(CoordinatorProcess::new(config, memory)?, membership, config.security.clone());
    node.coordinate(listener)?;
    Ok(node)
}

/// Runs a server until the workers are done or the process is asked to end; then it hands over its shards first.
pub fn serve(
    config: &Config,
    registry: Registry,
    storage: Option<Storage>,
    end: &AtomicBool,
) -> Result<Departure, ClusterError> {
    let node = start_server(config, registry, storage)?;
    let mut waits = Waits::new(config);
    let served = attend(config, &node, end, &mut waits);
    let served = served.and_then(|departure| drain(&node, end, &mut waits).map(|()| departure));
    stop_server(&node);
    served
}

fn attend(
    config: &Config,
    node: &Node<ServerProcess>,
    end: &AtomicBool,
    waits: &mut Waits,
) -> Result<Departure, ClusterError> {
    let mut begun = false;
    while !end.load(Ordering::Relaxed) {
        std::thread::sleep(LOOK);
        node.failure().check()?;
        node.check_secret()?;
        let (silence, problem) = (node.silence(), node.problem());
        let server = node.lock();
        if let Some(why) = server.server().unwelcome() {
            return Err(why.clone().into());
        }
        if let Some(refusal) = server.server().unfit() {
            return Err(refusal.clone().into());
        }
        if server.server().forgotten() {
            return Err(ClusterError::Forgotten);
        }
        let wrong = server.wrong(silence, problem);
        let view = server.server().view();
        let (working, divided) = (!view.workers.is_empty(), !view.shards.is_empty());
        drop(server);
        waits.look(&wrong)?;
        // A run that goes back to a checkpoint has no shards until its servers are there, and no workers for a moment.
        begun = divided && (begun || working);
        if config.until_done && begun && !working {
            return Ok(Departure::Done);
        }
    }
    Ok(Departure::Asked)
}

/// Hands over, for as long as that takes: a server that nobody can replace stays while there are workers. A second signal
/// ends it at once.
fn drain(node: &Node<ServerProcess>, end: &AtomicBool, waits: &mut Waits) -> Result<(), ClusterError> {
    end.store(false, Ordering::Relaxed);
    node.step(|server, now| {
        server.leave();
        server.tick(now)
    });
    let began = Instant::now();
    while node.wait(LOOK, |server| server.over().then_some(())).is_none() && !end.load(Ordering::Relaxed) {
        node.failure().check()?;
        node.check_secret()?;
        let (silence, problem) = (node.silence(), node.problem());
        let server = node.lock();
        let (wrong, can) = (server.wrong(silence, problem), server.can_hand_over());
        drop(server);
        if wrong.silence > ALONE {
            let problem = wrong.problem.unwrap_or_else(|| "it does not answer".into());
            return Err(ClusterError::Unreachable { seconds: wrong.silence.as_secs(), problem });
        }
        let why = match can {
            true => "another server to take over its shards",
            false => {
                "another server to come, or the workers to be done: it was asked to leave, and nobody else can take over \
                 its shards; a second signal ends it, and with it the run"
            }
        };
        waits.say((began.elapsed() > TOLD).then(|| why.to_owned()));
    }
    Ok(())
}

/// Ends a server when everything that it was to save is saved.
pub fn stop_server(node: &Node<ServerProcess>) {
    let saver = node.lock().take_saver();
    if let Some(mut saver) = saver {
        saver.finish();
    }
    node.close();
}

/// Starts a server's threads.
pub fn start_server(
    config: &Config,
    registry: Registry,
    storage: Option<Storage>,
) -> Result<Node<ServerProcess>, ClusterError> {
    let (listener, address) = bind(config, &config.data_address())?;
    let server = ServerProcess::new(config, registry, storage, address);
    let node = Node::new(server, config.membership(), config.security.clone());
    node.share_memory(config.shared_memory);
    node.listen(listener);
    Ok(node)
}

/// A flag that is raised when the process is asked to end, or when the one that started it is gone.
pub fn ending(config: &Config) -> Result<Arc<AtomicBool>, ClusterError> {
    let end = Arc::new(AtomicBool::new(false));
    // Ctrl-C in a terminal reaches all processes of a launcher, which asks each in its turn.
    let ignored = Arc::new(AtomicBool::new(false));
    let interrupt = if config.parent.is_some() { &ignored } else { &end };
    for (signal, end) in [(signal_hook::consts::SIGTERM, &end), (signal_hook::consts::SIGINT, interrupt)] {
        let failed = |source| ClusterError::Listen { address: format!("signal {signal}"), source };
        signal_hook::flag::register(signal, end.clone()).map_err(failed)?;
    }
    if let Some(parent) = config.parent {
        std::thread::spawn(move || {
            while std::os::unix::process::parent_id() == parent {
                std::thread::sleep(Duration::from_millis(100));
            }
            // Nobody is left to tell: whoever started the run is gone.
            std::process::exit(1);
        });
    }
    Ok(end)
}

/// Asks a coordinator how things stand. One that is not there yet, or not known yet, is waited for, but not for long.
pub fn ask_status(config: &Config) -> Result<Report, ClusterError> {
    const AT_MOST: Duration = Duration::from_secs(2);
    let (membership, end) = (config.membership(), Instant::now() + AT_MOST);
    loop {
        let answer = match membership.coordinator() {
            Some(address) => control::ask(&address, &config.security, AT_MOST),
            None => {
                let nobody = || "nobody is the coordinator".into();
                Err(Unreached::Now(membership.problem().unwrap_or_else(nobody)))
            }
        };
        match answer {
            Ok(report) => return Ok(report),
            Err(Unreached::Unproved { address, why }) => return Err(ClusterError::Secret { address, why }),
            Err(Unreached::Now(problem)) if Instant::now() >= end => {
                return Err(ClusterError::Unreachable { seconds: AT_MOST.as_secs(), problem });
            }
            Err(_) => std::thread::sleep(5 * LOOK),
        }
    }
}
