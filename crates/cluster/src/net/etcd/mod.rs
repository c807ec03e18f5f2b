//! The coordinator by election, through etcd.
//!
//! Two keys per cluster. `leader` holds the address and the process of the coordinator and stands under its lease: when the
//! process dies, etcd removes the key with the lease and another candidate puts its own. `view` holds what a coordinator must remember,
//! and can be written only by whoever holds `leader`: every write compares the revision at which that key was
//! created, so one that was deposed without noticing cannot write.
//!
//! Why two coordinators do no harm: a coordinator speaks only while its own clock says that its lease of etcd holds,
//! counted from before the last keep-alive left. So every heartbeat that it answers was sent before its successor was
//! chosen, and the server's lease, which counts from that heartbeat, has ended when the successor's patience has.
//!
//! Any process of the cluster on the same host sees when that one has ended, which no successor has to fear any more, and ends
//! its lease. Where there is none, nobody knows before etcd does.
//!
//! Watches and keep-alives resume by themselves: each is a loop that begins anew after whatever went wrong.

mod api;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use api::{Api, Entry, Only};

use super::life;
use super::membership::{Membership, Memory, decode, encode};
use crate::coordinator::Durable;
use crate::error::ClusterError;

/// Length of a coordinator's lease, in seconds: a dead one is replaced after that, and etcd may be away for that long.
const TTL: u64 = 3;
const KEEP_ALIVE: Duration = Duration::from_millis(500);
/// Clocks differ in speed by less than one part in this many.
const DRIFT: u32 = 20;
/// After a failure, it is tried again after so long.
const AGAIN: Duration = Duration::from_millis(100);
/// A candidate that has never reached etcd gives up after so long.
const UNREACHABLE: Duration = Duration::from_secs(10);

/// A cluster that elects its coordinator.
pub struct Etcd {
    api: Arc<Api>,
    keys: Keys,
    known: Arc<Known>,
    left: Left,
}

/// The lease of a leadership that was given up while etcd did not answer.
type Left = Arc<Mutex<Option<i64>>>;

#[derive(Clone)]
struct Keys {
    leader: String,
    view: String,
}

/// Who leads, kept true by a thread for as long as anybody asks.
#[derive(Default)]
struct Known {
    leader: Mutex<Leader>,
    changed: Condvar,
}

#[derive(Default)]
struct Leader {
    place: Option<Place>,
    reached: bool,
    problem: Option<String>,
}

/// The leader's, as its key tells it: the address in a line, and the process in a second where the system tells it.
#[derive(Clone)]
struct Place {
    address: String,
    process: Option<String>,
    lease: i64,
}

impl Place {
    fn text(address: &str) -> String {
        life::myself().map_or_else(|| address.to_owned(), |process| format!("{address}\n{process}"))
    }

    fn of(entry: Entry) -> Option<Self> {
        let text = String::from_utf8(entry.value).ok()?;
        let mut lines = text.lines().map(str::to_owned);
        Some(Self { address: lines.next()?, process: lines.next(), lease: entry.lease })
    }

    /// Whether its process is known to have ended.
    fn is_left(&self) -> bool {
        self.process.as_deref().is_some_and(life::has_ended) && life::is_own(&self.address)
    }
}

impl Etcd {
    /// The cluster of this name, at these addresses of etcd. Begins to watch who leads.
    pub fn new(endpoints: Vec<String>, cluster: &str) -> Self {
        let prefix = prefix(cluster);
        let keys = Keys { leader: format!("{prefix}leader"), view: format!("{prefix}view") };
        let (api, known) = (Arc::new(Api::new(endpoints)), Arc::new(Known::default()));
        let (watching, key, told) = (api.clone(), keys.leader.clone(), Arc::downgrade(&known));
        std::thread::spawn(move || watch(&watching, &key, &told));
        let (revoking, looked_at) = (api.clone(), Arc::downgrade(&known));
        std::thread::spawn(move || look_after(&revoking, &looked_at));
        Self { api, keys, known, left: Left::default() }
    }

    /// Removes everything that a cluster has left in etcd.
    pub fn forget(endpoints: Vec<String>, cluster: &str) -> Result<(), ClusterError> {
        Api::new(endpoints).delete_all(&prefix(cluster))
    }

    /// Puts the key of the leader if nobody holds it.
    fn take_the_lead(&self, address: &str) -> Result<Option<Leadership>, ClusterError> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lease) = *left {
            // One that has ended meanwhile is as good.
            let _ = self.api.revoke(lease);
        }
        let asked = Instant::now();
        let lease = self.api.grant(TTL)?;
        *left = None;
        let none = [Only::Created(&self.keys.leader, 0)];
        let put = self.api.put_if(&none, &self.keys.leader, Place::text(address).as_bytes(), Some(lease));
        let Ok(Some(revision)) = put else {
            // Were the answer lost and the key put, it must not stand for a coordinator that does not know of it.
            let _ = self.api.revoke(lease);
            return put.map(|_| None);
        };
        let right = Arc::new(Mutex::new(Some(asked + believed())));
        let (api, kept) = (self.api.clone(), Arc::downgrade(&right));
        std::thread::spawn(move || keep_alive(&api, lease, &kept));
        let (api, keys) = (self.api.clone(), self.keys.clone());
        let left = self.left.clone();
        Ok(Some(Leadership { api, keys, lease, revision, written: 0, right, left }))
    }
}

fn prefix(cluster: &str) -> String {
    format!("/thalweg/{cluster}/")
}

/// For how long a lease is believed in.
fn believed() -> Duration {
    Duration::from_secs(TTL) - Duration::from_secs(TTL) / DRIFT
}

impl Membership for Etcd {
    fn campaign(&self, address: &str, end: &AtomicBool) -> Result<Option<Box<dyn Memory>>, ClusterError> {
        let began = Instant::now();
        while !end.load(Ordering::Relaxed) {
            match self.take_the_lead(address) {
                Ok(Some(leadership)) => return Ok(Some(Box::new(leadership))),
                Ok(None) => self.known.wait_for_vacancy(),
                Err(e) if !self.known.lock().reached && began.elapsed() > UNREACHABLE => return Err(e),
                Err(_) => std::thread::sleep(AGAIN),
            }
        }
        Ok(None)
    }

    fn coordinator(&self) -> Option<String> {
        self.known.lock().place.as_ref().map(|place| place.address.clone())
    }

    fn elects(&self) -> bool {
        true
    }

    fn problem(&self) -> Option<String> {
        let leader = self.known.lock();
        let nobody = leader.place.is_none().then(|| "etcd knows of no coordinator".to_owned());
        leader.problem.clone().or(nobody)
    }
}

impl Known {
    fn lock(&self) -> MutexGuard<'_, Leader> {
        self.leader.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, found: Result<Option<Place>, ClusterError>) {
        let mut leader = self.lock();
        match found {
            Ok(place) => *leader = Leader { place, reached: true, problem: None },
            // Who led a moment ago leads still, as far as anybody knows.
            Err(e) => leader.problem = Some(e.to_string()),
        }
        self.changed.notify_all();
    }

    /// Until nobody leads, or for a moment: what is known may be old.
    fn wait_for_vacancy(&self) {
        let taken = |leader: &mut Leader| leader.place.is_some();
        let waited = self.changed.wait_timeout_while(self.lock(), AGAIN, taken);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Reads the key and watches it from there, again and again.
fn watch(api: &Api, key: &str, known: &Weak<Known>) {
    loop {
        let found = api.get(key);
        let Some(told) = known.upgrade() else { return };
        let next = found.as_ref().ok().map(|(_, revision)| revision + 1);
        told.tell(found.map(|(entry, _)| entry.and_then(Place::of)));
        drop(told);
        let Some(next) = next else {
            std::thread::sleep(AGAIN);
            continue;
        };
        let watched = api.watch(key, next, |entry| {
            known.upgrade().map(|known| known.tell(Ok(entry.and_then(Place::of)))).is_some()
        });
        if watched.is_err() {
            std::thread::sleep(AGAIN);
        }
    }
}

/// Ends the lease of a leader that has ended.
fn look_after(api: &Api, known: &Weak<Known>) {
    while let Some(known) = known.upgrade() {
        let place = known.lock().place.clone();
        if let Some(left) = place.filter(Place::is_left) {
            let _ = api.revoke(left.lease);
        }
        drop(known);
        std::thread::sleep(AGAIN);
    }
}

/// Until when this process may speak as the coordinator; `None` when it may not any more.
type Right = Mutex<Option<Instant>>;

fn keep_alive(api: &Api, lease: i64, right: &Weak<Right>) {
    loop {
        std::thread::sleep(KEEP_ALIVE);
        let asked = Instant::now();
        let answer = api.keep_alive(lease);
        let Some(right) = right.upgrade() else { return };
        let mut until = right.lock().unwrap_or_else(PoisonError::into_inner);
        match answer {
            // One that was late to ask stays deposed, whatever etcd says.
            Ok(true) if until.is_some_and(|t| t > asked) => *until = Some(asked + believed()),
            Ok(_) => *until = None,
            Err(_) => {}
        }
        if until.is_none() {
            return;
        }
    }
}

/// The right to be the coordinator, for as long as the lease holds.
struct Leadership {
    api: Arc<Api>,
    keys: Keys,
    lease: i64,
    revision: i64, // at which its key was created: what every write is compared with
    written: i64,  // at which the view was last written
    right: Arc<Right>,
    left: Left,
}

impl Leadership {
    fn right(&self) -> MutexGuard<'_, Option<Instant>> {
        self.right.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Memory for Leadership {
    fn load(&mut self) -> Result<Option<Durable>, ClusterError> {
        let (entry, _) = self.api.get(&self.keys.view)?;
        self.written = entry.as_ref().map_or(0, |e| e.modified);
        let wrong = |problem| ClusterError::StateFile { path: format!("etcd: {}", self.keys.view), problem };
        entry.map(|e| decode(&e.value).map_err(wrong)).transpose()
    }

    /// The view must be the one last written: so a write whose answer was lost cannot overtake a later one.
    fn store(&mut self, durable: &Durable) -> Result<(), ClusterError> {
        let value = encode(durable);
        for _ in 0..2 {
            let only = [
                Only::Created(&self.keys.leader, self.revision),
                Only::Modified(&self.keys.view, self.written),
            ];
            if let Some(revision) = self.api.put_if(&only, &self.keys.view, &value, None)? {
                self.written = revision;
                return Ok(());
            }
            if self.api.get(&self.keys.leader)?.0.is_none_or(|e| e.created != self.revision) {
                break;
            }
            // Still the leader: an earlier write of its own came through after all.
            self.written = self.api.get(&self.keys.view)?.0.map_or(0, |e| e.modified);
        }
        *self.right() = None;
        Err(ClusterError::Deposed)
    }

    fn leads(&self) -> bool {
        self.right().is_some_and(|until| Instant::now() < until)
    }

    fn resign(&mut self) {
        *self.right() = None;
        if self.api.revoke(self.lease).is_err() {
            *self.left.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.lease);
        }
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        self.resign();
    }
}
