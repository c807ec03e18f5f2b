//! The coordinator on sockets: its state machine, its memory, and what it was last told by everybody.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{LOOK, bind, ending};
use crate::coordinator::{Coordinator, Durable, Said};
use crate::error::ClusterError;
use crate::ids::{Peer, RunId, ServerId};
use crate::message::{FromMember, Message, Outgoing, Time, ToMember};
use crate::net::config::Config;
use crate::net::handshake::random;
use crate::net::machine::Machine;
use crate::net::membership::Memory;
use crate::net::metrics;
use crate::net::node::Node;
use crate::net::silence::Silent;
use crate::net::told::{AllTold, Told};
use crate::report::{Report, Standing, holds};
use crate::say::say;

/// How long a coordinator that nobody ends waits for the last servers to go.
const LAST: Duration = Duration::from_secs(5);
/// How long a coordinator that was asked to go together with everybody else waits for the workers.
const STAYS: Duration = Duration::from_secs(60);

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
            self.told.hear(self.coordinator.view(), from, h, now);
            self.silent.hear(from, now);
        }
        let mut out = self.coordinator.handle(from, message, now);
        // Whoever has left by its own word is not missed, however long it takes to store that.
        if self.coordinator.view().member(from).is_none() {
            self.told.forget(from);
        }
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
        for (name, silence) in self.told.retain(self.coordinator.view(), self.patience, now) {
            say("coordinator", format_args!("{name} was not heard of for {silence} and has lost its place"));
        }
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
            say(
                "coordinator",
                format_args!("cannot store the view: {}", problem.as_deref().unwrap_or_default()),
            );
        }
        self.problem = problem;
        if self.problem.is_some() {
            return Vec::new();
        }
        let before = self.stored.as_ref().is_some_and(|stored| !stored.view.shards.is_empty());
        if let (true, [], Some(clock)) = (before, &durable.view.shards[..], durable.view.restored) {
            let back = format_args!("shards were lost; the run goes back to the checkpoint at clock {clock}");
            say("coordinator", back);
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
        let members = view.members().map(|(peer, role, member)| {
            let mut told = self.told.progress(&view, peer, now);
            if let (Some(told), true) = (&mut told, self.silent.has_told(peer)) {
                told.waiting_for = "SILENT, and nobody else has all of its shards".into();
            }
            let (name, host) = (member.name.clone(), member.host.clone());
            Standing { name, role, host, holds: Some(holds(&view, peer)), told }
        });
        let members: Vec<_> = members.collect();
        let members = members.into_iter().chain(self.told.missing(&view, now)).collect();
        let (epoch, n_shards, n_slots) = (view.epoch, view.shards.len() as u32, view.slots.len() as u32);
        Report { epoch, n_shards, n_slots, members }
    }
}

impl CoordinatorProcess {
    /// The same for Prometheus, in its text format.
    pub fn metrics(&self, now: Time) -> String {
        let view = self.coordinator.view();
        let mut text = String::new();
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
            for (peer, role, member) in view.members() {
                if let Some(told) = self.told.get(peer) {
                    let process = member.name.replace(['\\', '"', '\n'], "_");
                    let labels = format!("process=\"{process}\",role=\"{role}\"");
                    text += &format!("thalweg_{name}{{{labels}}} {}\n", value(told, now));
                }
            }
        }
        text
    }
}

/// Runs the coordinator until the process is asked to end; where it is elected, whenever it is chosen.
pub fn coordinate(config: &Config) -> Result<(), ClusterError> {
    let end = ending(config)?;
    let membership = config.membership();
    loop {
        let (listener, address) = bind(config, &config.coordinator)?;
        let Some(memory) = membership.campaign(&address, &end)? else { return Ok(()) };
        if config.etcd.is_some() {
            say(&config.name, format_args!("the coordinator now, at {address}"));
        }
        let process = match CoordinatorProcess::new(config, memory) {
            // Gone again between the election and the first look; so is the place, then.
            Err(e @ ClusterError::Etcd { .. }) => {
                say(&config.name, e);
                continue;
            }
            made => made?,
        };
        let node = Node::new(process, membership.clone(), config.security.clone());
        node.coordinate(listener)?;
        if let Some(address) = &config.metrics {
            let served = metrics::serve(node.clone(), address);
            // Who led before on this host may still have the port; a cluster does not end for that.
            match served {
                Err(e @ ClusterError::Listen { .. }) if config.etcd.is_some() => {
                    say(&config.name, format_args!("no metrics: {e}"));
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
        let why = membership.problem().map_or_else(String::new, |why| format!(": {why}"));
        say(&config.name, format_args!("not the coordinator any more{why}"));
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
