//! A state machine on sockets, and the threads that run it.
//!
//! Each connection of the data plane has a thread that reads and one that writes. Who reads a message steps the machine
//! under its lock and leaves the answers in the queues of the writers: no step waits for a socket, and
//! what one machine sends to one peer about one shard stays in order. Blocking sockets and threads, because a cluster of
//! tens of processes needs no more, and a wake-up costs less than a task switch through a reactor. What is said to and by
//! the coordinator goes over gRPC (`control`) and comes into an inbox that one more thread empties. A server's signs of life
//! do not wait for its machine (`pulse`).
//!
//! A step that panics, be it in a rule of the user's, is the machine's last: half of a change may stand. Whoever runs the
//! node ends then, and says why ([`Failure`]).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::AbortHandle;

use super::control::{self, Attendance, Heard, Inbox, ToMembers, Unreached};
use super::handshake::Unproved;
use super::machine::{Machine, Trouble};
use super::membership::Membership;
use super::pulse::Pulse;
use super::queue::{Frames, Queue};
use super::reading::Reading;
use super::sharing::{self, Ends};
use super::stream::{LinkId, Security, Stream};
use super::waits::Unheard;
use crate::error::ClusterError;
use crate::ids::Peer;
use crate::message::{Message, Outgoing, Time};
use crate::wire::{Incoming, Lanes, Limits};

/// Between two looks at the time.
const TICK: Duration = Duration::from_millis(10);
const CONNECT: Duration = Duration::from_millis(900);
/// A look at the time that is later than this was not late: the process was stopped.
const LATE: Duration = Duration::from_millis(500);
/// After a connection broke, it is tried again after so long.
const AGAIN: Duration = Duration::from_millis(20);

/// The panic that ended a machine, if one did.
#[derive(Debug, Clone, Default)]
pub struct Failure(Arc<OnceLock<String>>);

impl Failure {
    /// An error once the machine has panicked.
    pub fn check(&self) -> Result<(), ClusterError> {
        match self.0.get() {
            None => Ok(()),
            Some(message) => Err(ClusterError::Panicked { message: message.clone() }),
        }
    }
}

/// A machine, its connections and its threads.
pub struct Node<M: Machine>(Arc<Shared<M>>);

impl<M: Machine> Clone for Node<M> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

struct Shared<M> {
    machine: Mutex<M>,
    changed: Condvar,
    links: Mutex<Links>,
    membership: Arc<dyn Membership>,
    security: Security,
    start: Instant,
    awake: AtomicU64, // microseconds in which this process was not itself stopped
    closed: AtomicBool,
    failure: Failure,
    shares_memory: AtomicBool,
    pulse: Pulse,
    inbox: Mutex<Option<Inbox>>,         // none once it is closed
    serving: Mutex<Option<AbortHandle>>, // members call this process
    received: AtomicU64,
    sent: AtomicU64,
}

#[derive(Default)]
struct Links {
    by_peer: BTreeMap<Peer, Link>,
    broken: Vec<(Peer, Instant)>,
    heard: Option<Time>,     // when the coordinator last said anything, in time awake
    problem: Option<String>, // why the coordinator was last not reached
    refused: Option<Time>,   // since when nobody listens there, in time awake
    unproved: Option<(String, Unproved)>, // where a secret was refused
    troubles: BTreeMap<Peer, Trouble>, // with servers
}

struct Link {
    id: LinkId,
    address: String, // where we connected to; empty when the peer connected to us
    line: Line,
}

enum Line {
    /// Between workers and servers; the stream is for shutting it down, none while it connects.
    Data(Queue, Option<Stream>),
    /// To the coordinator.
    Attends(Attendance),
    /// To a member, by the coordinator.
    Tells(ToMembers),
}

impl Line {
    /// How many bytes were put on their way. Nobody says what does not belong on a line.
    fn send(&self, me: Peer, message: &Message) -> usize {
        match (self, message) {
            (Line::Data(queue, _), Message::Data(data)) => queue.send(me, data),
            (Line::Attends(attendance), Message::FromMember(said)) => attendance.say(me, said),
            (Line::Tells(outbox), Message::ToMember(told)) => control::tell(outbox, told),
            _ => 0,
        }
    }

    fn shutdown(self) {
        if let Line::Data(_, Some(stream)) = self {
            stream.shutdown();
        }
    }
}

impl<M: Machine> Node<M> {
    /// Runs a machine that finds its coordinator so.
    pub fn new(machine: M, membership: Arc<dyn Membership>, security: Security) -> Self {
        let (inbox, mut heard) = control::inbox();
        let leased = machine.lease().is_some();
        let node = Self(Arc::new(Shared {
            machine: Mutex::new(machine),
            changed: Condvar::new(),
            links: Mutex::default(),
            membership,
            security,
            start: Instant::now(),
            awake: AtomicU64::new(0),
            closed: AtomicBool::new(false),
            failure: Failure::default(),
            shares_memory: AtomicBool::new(false),
            pulse: Pulse::default(),
            inbox: Mutex::new(Some(inbox)),
            serving: Mutex::default(),
            received: AtomicU64::new(0),
            sent: AtomicU64::new(0),
        }));
        let timer = node.clone();
        std::thread::spawn(move || timer.keep_time());
        if leased {
            let lives = node.clone();
            std::thread::spawn(move || lives.keep_alive());
        }
        let hears = node.clone();
        std::thread::spawn(move || {
            while let Some(heard) = heard.blocking_recv() {
                hears.hear(heard);
            }
        });
        node
    }

    /// Whether values may travel through memory shared with other processes of this host.
    pub fn share_memory(&self, may: bool) {
        self.0.shares_memory.store(may, Ordering::Relaxed);
    }

    /// Lets members call: this process is the coordinator.
    pub fn coordinate(&self, listener: TcpListener) -> Result<(), ClusterError> {
        let Some(inbox) = self.inbox() else { return Ok(()) };
        let address = listener.local_addr().map_or_else(|_| String::new(), |a| a.to_string());
        let served = control::serve(listener, self.0.security.clone(), inbox);
        let serving = served.map_err(|source| ClusterError::Listen { address, source })?;
        *self.0.serving.lock().unwrap_or_else(PoisonError::into_inner) = Some(serving);
        Ok(())
    }

    /// Lets workers and servers connect.
    pub fn listen(&self, listener: TcpListener) {
        let node = self.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if node.is_closed() {
                    return;
                }
                let Ok(socket) = stream else { continue };
                let node = node.clone();
                std::thread::spawn(move || {
                    // Whoever cannot prove to belong here loses this connection, and nothing else happens.
                    let accepted = Stream::accept(socket, &node.0.security).and_then(|mut stream| {
                        let may = node.0.shares_memory.load(Ordering::Relaxed) && stream.is_on_this_host();
                        let ends = stream.soon(|stream| sharing::accept(stream, may))?;
                        Ok((stream, ends))
                    });
                    if let Ok((stream, ends)) = accepted {
                        node.run(stream, ends, None);
                    }
                });
            }
        });
    }

    /// The machine, for a look or a step.
    pub fn lock(&self) -> MutexGuard<'_, M> {
        self.0.machine.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Steps the machine, and sends what it says. One that has panicked is not stepped any more.
    pub fn step(&self, f: impl FnOnce(&mut M, Time) -> Vec<Outgoing>) {
        let mut machine = self.lock();
        if self.0.failure.0.get().is_some() {
            return;
        }
        let stepped = catch_unwind(AssertUnwindSafe(|| {
            let mut out = f(&mut machine, self.now());
            machine.release(&mut out, self.now());
            self.send(&machine, out);
        }));
        if let Err(panic) = stepped {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
            let _ = self.0.failure.0.set(text.unwrap_or("without a word").to_owned());
            // Nobody is answered any more, and no lease is kept for it.
            self.close();
        }
        drop(machine);
        self.0.changed.notify_all();
    }

    /// What to look at for whether its machine has panicked.
    pub fn failure(&self) -> &Failure {
        &self.0.failure
    }

    /// Waits until `f` finds what it looks for, or so long.
    pub fn wait<T>(&self, at_most: Duration, mut f: impl FnMut(&mut M) -> Option<T>) -> Option<T> {
        let end = Instant::now() + at_most;
        let mut machine = self.lock();
        loop {
            if let Some(found) = f(&mut machine) {
                return Some(found);
            }
            let left = end.checked_duration_since(Instant::now())?;
            let waited = self.0.changed.wait_timeout(machine, left);
            machine = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Time on this process's clock.
    pub fn now(&self) -> Time {
        self.0.start.elapsed()
    }

    /// An error when the coordinator has another secret. Who was let in before waits for it as ever: it may be another
    /// program that has its address for a while.
    pub fn check_secret(&self) -> Result<(), ClusterError> {
        let links = self.links();
        match &links.unproved {
            Some((address, why)) if links.heard.is_none() => {
                Err(ClusterError::Secret { address: address.clone(), why: *why })
            }
            _ => Ok(()),
        }
    }

    /// Bytes received and sent.
    pub fn traffic(&self) -> [u64; 2] {
        [&self.0.received, &self.0.sent].map(|n| n.load(Ordering::Relaxed))
    }

    /// Ends all threads and connections.
    pub fn close(&self) {
        self.0.closed.store(true, Ordering::SeqCst);
        for (_, link) in std::mem::take(&mut self.links().by_peer) {
            link.line.shutdown();
        }
        self.0.inbox.lock().unwrap_or_else(PoisonError::into_inner).take();
        let serving = self.0.serving.lock().unwrap_or_else(PoisonError::into_inner).take();
        serving.iter().for_each(AbortHandle::abort);
        self.0.changed.notify_all();
    }

    /// Whether it was closed or came to its end.
    pub fn is_closed(&self) -> bool {
        self.0.closed.load(Ordering::SeqCst)
    }

    fn links(&self) -> MutexGuard<'_, Links> {
        self.0.links.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn inbox(&self) -> Option<Inbox> {
        self.0.inbox.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Takes in what came over the control plane.
    fn hear(&self, heard: Heard) {
        let count = |bytes: usize| self.0.received.fetch_add(bytes as u64, Ordering::Relaxed);
        match heard {
            Heard::FromMember { link: id, from, message, bytes, outbox } => {
                count(bytes);
                let mut links = self.links();
                if links.by_peer.get(&from).is_none_or(|link| link.id != id) {
                    let link = Link { id, address: String::new(), line: Line::Tells(outbox) };
                    links.by_peer.insert(from, link);
                }
                drop(links);
                self.step(|machine, now| machine.handle(from, (*message).into(), now));
            }
            Heard::ToMember { message, bytes } => {
                count(bytes);
                let mut links = self.links();
                (links.heard, links.problem, links.refused) = (Some(self.awake()), None, None);
                drop(links);
                if !self.0.pulse.hear(&message) {
                    self.step(|machine, now| machine.handle(Peer::Coordinator, message.into(), now));
                }
            }
            Heard::Reached => self.links().refused = None,
            // Who asked may have gone.
            Heard::Asked(answer) => drop(answer.send(self.lock().status(self.now()))),
            Heard::Ended { link, why } => {
                let mut links = self.links();
                let is_refused = matches!(why, Some(Unreached::Refused(_)));
                links.refused = is_refused.then(|| links.refused.unwrap_or(self.awake()));
                match why {
                    // Who has spoken before is no stranger.
                    Some(Unreached::Silent(_)) if links.heard.is_some() => links.problem = None,
                    Some(
                        Unreached::Now(problem) | Unreached::Refused(problem) | Unreached::Silent(problem),
                    ) => links.problem = Some(problem),
                    Some(Unreached::Unproved { address, why }) => {
                        links.problem = Some(format!("{address}: {why}"));
                        links.unproved = Some((address, why));
                    }
                    None => {}
                }
                drop(links);
                self.broken(link);
            }
        }
    }

    fn keep_time(&self) {
        let mut looked = Instant::now();
        while !self.is_closed() {
            std::thread::sleep(TICK);
            let passed = looked.elapsed().min(LATE);
            looked = Instant::now();
            self.0.awake.fetch_add(passed.as_micros() as u64, Ordering::Relaxed);
            self.follow();
            let due: Vec<Peer> = {
                let mut links = self.links();
                let now = Instant::now();
                let (due, later) =
                    std::mem::take(&mut links.broken).into_iter().partition(|(_, at)| *at <= now);
                links.broken = later;
                let due: Vec<(Peer, Instant)> = due;
                due.into_iter().map(|(peer, _)| peer).collect()
            };
            let [received, sent] = self.traffic();
            self.step(|machine, now| {
                machine.count(received, sent);
                machine.sending(self.sending(), now);
                machine.troubled(self.troubles(machine));
                machine.connected(self.links().by_peer.keys().copied().collect());
                let mut out = machine.tick(now);
                due.into_iter().for_each(|peer| out.extend(machine.reconnected(peer, now)));
                out
            });
        }
    }

    /// Gives signs of life while the machine is at work.
    fn keep_alive(&self) {
        while !self.is_closed() {
            std::thread::sleep(TICK);
            let Some((me, message)) = self.0.pulse.due(self.now()) else { continue };
            if let Some(link) = self.links().by_peer.get(&Peer::Coordinator) {
                let n = link.line.send(me, &message);
                self.0.sent.fetch_add(n as u64, Ordering::Relaxed);
            }
        }
    }

    /// Time on this process's clock in which it could have heard of others. What it has not heard of while it was stopped is nobody's
    /// silence.
    fn awake(&self) -> Time {
        Duration::from_micros(self.0.awake.load(Ordering::Relaxed))
    }

    /// For how long the coordinator was not heard of, and what is known of that.
    pub(crate) fn unheard(&self) -> Unheard {
        let (links, now) = (self.links(), self.awake());
        let lasts = now.saturating_sub(links.heard.unwrap_or(Time::ZERO));
        // Before it was heard of, it may not have begun.
        let refused = links.refused.filter(|_| links.heard.is_some() && !self.0.membership.elects());
        let ended = refused.map(|since| now.saturating_sub(since));
        let problem = self.0.membership.problem().or_else(|| links.problem.clone());
        Unheard { lasts, problem, ended }
    }

    /// To whom not everything has left yet.
    fn sending(&self) -> BTreeSet<Peer> {
        let links = self.links();
        let busy = |link: &Link| matches!(&link.line, Line::Data(queue, _) if queue.is_sending());
        links.by_peer.iter().filter(|(_, link)| busy(link)).map(|(peer, _)| *peer).collect()
    }

    /// The peers that are not reached, of those that still have an address. Called under the machine's lock.
    fn troubles(&self, machine: &M) -> Vec<Trouble> {
        let mut links = self.links();
        links.troubles.retain(|peer, trouble| {
            matches!(peer, Peer::Server(id) if machine.address(*id).as_deref() == Some(&trouble.address))
        });
        links.troubles.values().cloned().collect()
    }

    /// Lets go of a coordinator when another one is known. One that was stopped does not end the connection itself.
    fn follow(&self) {
        let mut links = self.links();
        let Some(link) = links.by_peer.get(&Peer::Coordinator) else { return };
        if self.0.membership.coordinator().is_some_and(|now| now != link.address) {
            links.by_peer.remove(&Peer::Coordinator);
            links.broken.push((Peer::Coordinator, Instant::now()));
        }
    }

    /// Puts messages into the queues. Called under the machine's lock, so that their order is its order.
    fn send(&self, machine: &M, out: Vec<Outgoing>) {
        if out.is_empty() || self.is_closed() {
            return;
        }
        let me = machine.me();
        self.0.pulse.note(me, &out, machine.lease(), self.now());
        let mut links = self.links();
        for (to, message) in out {
            let link = match links.by_peer.entry(to) {
                Entry::Occupied(link) => link.into_mut(),
                Entry::Vacant(place) => match self.find(machine, to).and_then(|at| self.connect(to, at)) {
                    Some(link) => place.insert(link),
                    None => continue,
                },
            };
            let n = link.line.send(me, &message);
            self.0.sent.fetch_add(n as u64, Ordering::Relaxed);
        }
    }

    /// Where to connect to; workers connect to us, not we to them.
    fn find(&self, machine: &M, to: Peer) -> Option<String> {
        match to {
            Peer::Coordinator => self.0.membership.coordinator(),
            Peer::Server(id) => machine.address(id),
            Peer::Worker(_) | Peer::Newcomer(_) => None,
        }
    }

    /// Begins to; what is to be sent waits in the meantime. Nothing any more once this is closed.
    fn connect(&self, to: Peer, address: String) -> Option<Link> {
        let id = LinkId::next();
        let place = address.clone();
        if to == Peer::Coordinator {
            let attendance = Attendance::begin(id, address, self.0.security.clone(), self.inbox()?);
            return Some(Link { id, address: place, line: Line::Attends(attendance) });
        }
        let (queue, frames) = Queue::new();
        let node = self.clone();
        std::thread::spawn(move || {
            node.links().troubles.entry(to).or_insert_with(|| Trouble {
                peer: to,
                address: address.clone(),
                problem: "no answer yet".into(),
                since: Instant::now(),
            });
            let connected = reach(&address).and_then(|socket| {
                let mut stream = Stream::connect(socket, &address, &node.0.security)?;
                let may = node.0.shares_memory.load(Ordering::Relaxed) && stream.is_on_this_host();
                let ends = stream.soon(|stream| sharing::offer(stream, may))?;
                Ok((stream, ends))
            });
            match connected {
                Ok((stream, ends)) => {
                    node.links().troubles.remove(&to);
                    node.run(stream, ends, Some((to, id, frames)));
                }
                Err(e) => {
                    if let Some(trouble) = node.links().troubles.get_mut(&to) {
                        trouble.problem = e.to_string();
                    }
                    node.broken(id);
                }
            }
        });
        Some(Link { id, address: place, line: Line::Data(queue, None) })
    }

    /// Reads from a connection until it ends. Who connected has a queue already.
    fn run(&self, stream: Stream, ends: Ends, connected: Option<(Peer, LinkId, Frames)>) {
        let writing = stream.clone();
        let (mut known, id, frames, queue) = match connected {
            Some((peer, id, frames)) => {
                let mut links = self.links();
                let link = links.by_peer.get_mut(&peer).filter(|l| l.id == id);
                if let Some(Link { line: Line::Data(_, stream), .. }) = link {
                    *stream = Some(writing.clone());
                }
                drop(links);
                (Some(peer), id, frames, None)
            }
            None => {
                let (queue, frames) = Queue::new();
                (None, LinkId::next(), frames, Some(queue))
            }
        };
        let (inlet, outlet) = ends.unzip();
        let mut writer = writing.clone();
        std::thread::spawn(move || {
            let _ = frames.write(&mut writer, Lanes::sharing(outlet));
            writer.shutdown();
        });
        let mut incoming = Incoming::new(Limits::default()).sharing(inlet).landing(self.lock().landing());
        let mut reading = Reading::new(stream);
        // A malformed frame, or half of one, ends this connection and nothing else.
        while let Ok(Ok(Some((from, message)))) = reading.as_mut().map(|r| r.next(&mut incoming)) {
            self.0.received.fetch_add(incoming.take_received(), Ordering::Relaxed);
            if self.is_closed() {
                break;
            }
            if let Some(queue) = queue.as_ref().filter(|_| known != Some(from)) {
                let line = Line::Data(queue.clone(), Some(writing.clone()));
                self.links().by_peer.insert(from, Link { id, address: String::new(), line });
                known = Some(from);
            }
            self.step(|machine, now| machine.handle(from, message.into(), now));
        }
        self.broken(id);
        writing.shutdown();
    }

    /// A link has ended: forget it, and tell the machine in a moment.
    fn broken(&self, id: LinkId) {
        let mut links = self.links();
        let peers: Vec<Peer> = links.by_peer.iter().filter(|(_, l)| l.id == id).map(|(p, _)| *p).collect();
        for peer in peers {
            links.by_peer.remove(&peer);
            links.broken.push((peer, Instant::now() + AGAIN));
        }
    }
}

fn reach(address: &str) -> io::Result<TcpStream> {
    let addresses: Vec<SocketAddr> = address.to_socket_addrs()?.collect();
    let mut last = io::Error::new(io::ErrorKind::NotFound, "no such address");
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT) {
            Ok(stream) => return Ok(stream),
            Err(e) => last = e,
        }
    }
    Err(last)
}
