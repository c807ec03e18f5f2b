//! A server on sockets: it begins a new life when it loses its place, and hands over its shards when it is asked to go.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::{ALONE, Departure, LOOK, bind, join};
use crate::error::ClusterError;
use crate::ids::{Peer, ServerId};
use crate::message::{Activity, Counts, Message, Outgoing, Role, Time};
use crate::net::config::Config;
use crate::net::machine::{Machine, Trouble};
use crate::net::node::Node;
use crate::net::waits::{self, TOLD, Unheard, Waits, Wrong};
use crate::rule::Registry;
use crate::server::{Server, Source};
use crate::state::Plan;
use crate::storage::{Saver, Storage};
use crate::view::Lease;

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

    fn wrong(&self, unheard: Unheard) -> Wrong {
        Wrong { unheard, troubles: self.troubles.clone(), ..Wrong::default() }
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
        let unheard = node.unheard();
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
        let wrong = server.wrong(unheard);
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
        waits.bear(&node.unheard(), ALONE)?;
        let can = node.lock().can_hand_over();
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
