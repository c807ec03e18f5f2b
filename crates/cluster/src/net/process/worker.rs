//! A worker's session on sockets, and what has happened to it.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::join;
use crate::doing::Doing;
use crate::ids::{Epoch, Peer, ServerId, Slot};
use crate::landing::{Landing, Places};
use crate::message::{Counts, Message, Outgoing, Role, Time, ToMember};
use crate::net::config::Config;
use crate::net::life;
use crate::net::machine::{Machine, Trouble};
use crate::net::waits::{self, Desertion, Unheard, Wrong};
use crate::session::{Event, Request, Session};
use crate::state::Parts;
use crate::view::View;

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

/// The servers of the last view that had any.
#[derive(Default)]
struct Servers {
    epoch: Epoch,
    addresses: Vec<String>,
    at: Option<Time>,             // when that was still the view, or when there was first one
    closed: Vec<Arc<AtomicBool>>, // whether nobody listens there, asked when they are all gone
}

impl Servers {
    fn look(&mut self, view: &View, now: Time) {
        if !view.servers.is_empty() {
            self.at = Some(now);
            if self.epoch != view.epoch {
                let addresses = view.servers.values().map(|member| member.address.clone()).collect();
                *self = Self { epoch: view.epoch, addresses, at: Some(now), closed: Vec::new() };
            }
        } else if view.restored.is_some() && self.closed.is_empty() {
            self.at.get_or_insert(now);
            self.closed = self.addresses.iter().map(|address| life::is_closed(address)).collect();
        }
    }

    /// False as long as that is not known of each of them.
    fn have_ended(&self) -> bool {
        !self.closed.is_empty() && self.closed.iter().all(|closed| closed.load(Ordering::Relaxed))
    }
}

/// A worker's session, and what has happened to it.
pub struct WorkerProcess {
    session: Session,
    config: Config,
    tables: Vec<Arc<Parts>>,
    events: VecDeque<Event>,
    troubles: Vec<(String, Trouble)>,
    joined: Option<Time>, // when it was let in
    servers: Servers,
    held: Option<String>, // whom the round waits for, as the coordinator last said
    landing: Arc<Landing>,
    began: Instant,
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
            servers: Servers::default(),
            held: None,
            landing: Arc::default(),
            began: Instant::now(),
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
        // Without shards nothing was computed, or all of it is lost: there is nothing to hand over or to save.
        let begun = self.session.id().filter(|id| view.workers.contains_key(id) && !view.shards.is_empty());
        match begun {
            Some(_) if view.workers.len() > 1 => Among::Others,
            Some(me) if !view.slots_of(me).is_empty() => Among::Last,
            _ => Among::Nobody,
        }
    }

    /// Begins a new session after the old one was ended by the coordinator.
    pub fn reborn(&mut self) {
        // What still comes for the life before answers none of the calls to come.
        let counted = self.session.next_call();
        self.session = Self::life(&self.config, &self.tables).counting_from(counted);
        // What it lacks then, it has not lacked for as long as its life before.
        self.joined = None;
    }

    /// Begins a slot's call of every shard, whose answers are to be received here.
    pub(crate) fn call(
        &mut self,
        slot: Slot,
        requests: Vec<Request>,
        places: Vec<Places>,
        now: Time,
    ) -> Vec<Outgoing> {
        self.landing.expect(slot, self.session.next_call(), places);
        self.session.call(slot, requests, now)
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
    pub(crate) fn wrong(&self, now: Time, unheard: Unheard) -> Wrong {
        let lacks = self.lacks().zip(self.joined.map(|at| now.saturating_sub(at)));
        let view = self.session.view();
        let deserted = view.restored.filter(|_| view.servers.is_empty());
        let deserted = deserted.map(|clock| Desertion {
            clock,
            lasts: now.saturating_sub(self.servers.at.unwrap_or(now)),
            ended: self.servers.have_ended(),
        });
        Wrong { unheard, troubles: self.troubles.clone(), lacks, deserted, held: self.held.clone() }
    }

    /// Who has never come.
    fn lacks(&self) -> Option<String> {
        let (view, size) = (self.session.view(), &self.config.size);
        self.session.id()?;
        if view.shards.is_empty() {
            return Some(format!("servers to come: {} of {} have", view.servers.len(), size.n_servers));
        }
        let begun = view.slots.iter().any(Option::is_some);
        (!begun).then(|| format!("workers to come: {} of {} have", view.workers.len(), size.n_workers))
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
        self.servers.look(self.session.view(), now);
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
        let (waited, lived) = (self.waited, self.began.elapsed());
        self.session.count(Counts { received, sent, waited, staleness: 0, lived });
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

    fn landing(&self) -> Arc<Landing> {
        self.landing.clone()
    }

    fn over(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{CallId, RunId, SessionId};
    use crate::view::Member;

    const S: fn(u64) -> Time = Time::from_secs;

    fn welcome(worker: &mut WorkerProcess, id: u64, now: Time) {
        let (nonce, you) = (worker.session().nonce(), Peer::Worker(SessionId(id)));
        let told = ToMember::Welcome { nonce, you, run: RunId::default() };
        worker.handle(Peer::Coordinator, told.into(), now);
    }

    /// One that is busy comes back when it can; one that has ended does not.
    #[test]
    fn servers_have_ended_when_nobody_listens_where_each_of_them_was() {
        let listeners = [(); 2].map(|()| std::net::TcpListener::bind("127.0.0.1:0").unwrap());
        let address = |l: &std::net::TcpListener| l.local_addr().unwrap().to_string();
        let member = |l| Member { address: address(l), ..Member::default() };
        let all = View {
            epoch: Epoch(3),
            servers: [(ServerId(1), member(&listeners[0])), (ServerId(2), member(&listeners[1]))].into(),
            ..View::default()
        };
        let gone = View { epoch: Epoch(4), restored: Some(7), ..View::default() };
        let mut servers = Servers::default();
        servers.look(&gone, S(1));
        assert_eq!((servers.have_ended(), servers.at), (false, Some(S(1))), "none was known");
        servers.look(&all, S(2));
        let [busy, dead] = listeners;
        drop(dead);
        servers.look(&gone, S(3));
        busy.accept().unwrap();
        let end = Instant::now() + Duration::from_secs(60);
        while !servers.closed[1].load(Ordering::Relaxed) {
            assert!(Instant::now() < end, "nobody listens there");
            std::thread::yield_now();
        }
        assert_eq!((servers.have_ended(), servers.at), (false, Some(S(2))));
        servers.look(&View { epoch: Epoch(5), ..all }, S(5));
        drop(busy);
        servers.look(&View { epoch: Epoch(6), ..gone }, S(6));
        while !servers.have_ended() {
            assert!(Instant::now() < end, "nobody listens anywhere");
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_second_life_lacks_servers_since_its_own_beginning_and_counts_its_calls_on() {
        let config = Config::from(|variable| match variable {
            "THALWEG_ROLE" => Some("worker".into()),
            "THALWEG_COORDINATOR" => Some("127.0.0.1:1".into()),
            _ => None,
        });
        let config = config.unwrap();
        let mut worker = WorkerProcess::new(&config, Vec::new());
        let lacked = |worker: &WorkerProcess, now| Some(worker.wrong(now, Unheard::default()).lacks?.1);
        assert_eq!(lacked(&worker, S(3)), None, "nobody has let it in");
        welcome(&mut worker, 1, S(5));
        assert_eq!(lacked(&worker, S(9)), Some(S(4)));
        worker.session = WorkerProcess::life(&config, &[]).counting_from(CallId(40));
        worker.reborn();
        assert_eq!(lacked(&worker, S(20)), None);
        assert_eq!(worker.session().next_call(), CallId(40));
        welcome(&mut worker, 2, S(21));
        assert_eq!(lacked(&worker, S(22)), Some(S(1)), "not since the life before");
    }
}
