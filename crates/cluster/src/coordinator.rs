//! The coordinator as a state machine: it alone makes views.
//!
//! Promises: epochs rise; a server loses a place that lets it answer only when it has agreed, when its
//! lease has ended, or when its process is known to be gone; a server is made a member of a chain only
//! when it has everything. What it must remember over a crash is [`Durable`], to be stored before the
//! messages of a step leave.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::error::Unwelcome;
use crate::ids::{Clock, Epoch, Peer, RunId, ServerId, SessionId, Slot};
use crate::joining::{self, Claims, Holder};
use crate::message::{FromMember, Heartbeat, Join, Role, Settings, Time, ToMember, Wish};
use crate::view::{Chain, Member, Timing, View};
use crate::{placement, slots};

/// Something that the coordinator says, and to whom.
pub type Said = (Peer, ToMember);

/// What a run is made of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Size {
    /// Servers to wait for before shards are given out, for a while.
    pub n_servers: usize,
    /// Workers to wait for before slots are given out, for a while.
    pub n_workers: usize,
    /// Into how many shards the parameters are divided; what the servers say when nothing.
    pub n_shards: Option<usize>,
    /// Into how many slots a batch is divided.
    pub n_slots: usize,
    /// How many servers hold each shard, when there are enough.
    pub replicas: usize,
}

/// What outlives a crash of the coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Durable {
    /// The number of the run. A coordinator that remembers nothing draws another one.
    pub run: RunId,
    /// The newest view.
    pub view: Arc<View>,
    /// The next number to be given to a process.
    pub next_id: u64,
    /// Servers that must have adopted an epoch, or have lost their lease, before others may see it.
    pub yielding: BTreeMap<ServerId, Epoch>,
    /// Whether slots were given out.
    pub begun: bool,
    /// The clock of the newest whole checkpoint of this run, as far as anybody has told.
    pub saved: Option<Clock>,
    /// What must be the same for all processes, by the first that came.
    pub settings: Settings,
}

/// The one that keeps the view.
#[derive(Debug)]
pub struct Coordinator {
    size: Size,
    timing: Timing,
    durable: Durable,
    heard: BTreeMap<Peer, Time>,
    granted: BTreeMap<ServerId, Time>, // when the last lease has surely ended
    adopted: BTreeMap<ServerId, Epoch>,
    published: Epoch, // the newest epoch that was sent to everybody
    first_join: Option<Time>,
    claims: Claims,
}

impl Coordinator {
    /// For a new run, or with a clock for one that goes on from a snapshot. Epochs and numbers go on
    /// from `after`, so that whoever knew the run before is refused.
    pub fn new(size: Size, timing: Timing, restored: Option<Clock>, after: Option<&Durable>) -> Self {
        let epoch = Epoch(after.map_or(0, |d| d.view.epoch.0 + 1));
        let slots = vec![None; size.n_slots];
        let view = Arc::new(View { epoch, slots, restored, ..View::default() });
        let next_id = after.map_or(1, |d| d.next_id);
        let run = after.map_or_else(RunId::default, |d| d.run);
        let durable = Durable {
            run,
            view,
            next_id,
            yielding: BTreeMap::new(),
            begun: false,
            saved: restored,
            settings: Settings::new(),
        };
        Self::recover(size, timing, durable, Time::ZERO)
    }

    /// Under the number of a new run. The numbers of its processes follow from it, so that none is ever given by two
    /// coordinators of which one does not know of the other.
    pub fn numbered(mut self, run: RunId) -> Self {
        self.durable.run = run;
        self.durable.next_id = (run.0 & 0x7fff_ffff) << 32 | 1;
        self
    }

    /// After a crash. Nobody's silence is held against them before a full lease has passed.
    pub fn recover(size: Size, timing: Timing, durable: Durable, now: Time) -> Self {
        let view = durable.view.clone();
        let servers = view.servers.keys().map(|id| Peer::Server(*id));
        let heard =
            servers.chain(view.workers.keys().map(|id| Peer::Worker(*id))).map(|p| (p, now)).collect();
        let leased = view.servers.keys().chain(durable.yielding.keys());
        let granted = leased.map(|id| (*id, now + timing.patience())).collect();
        let (adopted, published) = (BTreeMap::new(), Epoch(0));
        let first_join = (!view.servers.is_empty() || !view.workers.is_empty()).then_some(now);
        let claims = Claims::default();
        Self { size, timing, durable, heard, granted, adopted, published, first_join, claims }
    }

    /// What must be stored before the messages of the last step leave.
    pub fn durable(&self) -> &Durable {
        &self.durable
    }

    /// The newest view.
    pub fn view(&self) -> &Arc<View> {
        &self.durable.view
    }

    /// Takes in one message.
    pub fn handle(&mut self, from: Peer, message: FromMember, now: Time) -> Vec<Said> {
        let mut out = Vec::new();
        match (from, message) {
            (Peer::Newcomer(_), FromMember::Join(join)) => self.join(join, now, &mut out),
            (Peer::Server(id), FromMember::Heartbeat(heartbeat)) => {
                self.server_lives(id, heartbeat, now, &mut out);
            }
            (Peer::Worker(id), FromMember::Heartbeat(heartbeat)) => {
                self.worker_lives(id, &heartbeat, now, &mut out);
            }
            _ => {}
        }
        self.publish(now, &mut out);
        out
    }

    /// Lets time pass: members that were silent for too long lose their places.
    pub fn tick(&mut self, now: Time) -> Vec<Said> {
        let mut out = Vec::new();
        self.claims.forget(|peer| self.heard.contains_key(peer), self.timing.patience(), now);
        let silent = |peer: &Peer| self.heard.get(peer).is_none_or(|t| *t + self.timing.patience() <= now);
        let view = self.view().clone();
        let workers: Vec<SessionId> =
            view.workers.keys().copied().filter(|id| silent(&Peer::Worker(*id))).collect();
        let servers: BTreeSet<ServerId> = view
            .servers
            .keys()
            .copied()
            .filter(|id| silent(&Peer::Server(*id)) && self.lease_ended(*id, now))
            .collect();
        // The last that have everything keep their places for as long as they might come back.
        let servers = if placement::dispensable(&view, &servers) {
            servers
        } else {
            let alone = |id: &ServerId| placement::dispensable(&view, &BTreeSet::from([*id]));
            servers.into_iter().find(|id| alone(id)).into_iter().collect()
        };
        self.change(now, |view| {
            servers.iter().for_each(|id| placement::remove_server(view, *id));
            workers.iter().for_each(|id| drop(view.workers.remove(id)));
        });
        self.publish(now, &mut out);
        out
    }

    /// The connection to this peer has ended. It may come back; but who comes under its name has its place.
    pub fn part(&mut self, peer: Peer) {
        self.claims.part(peer);
    }

    /// The process of this member is known to have ended, so that its lease need not be waited for.
    pub fn gone(&mut self, peer: Peer, now: Time) -> Vec<Said> {
        let mut out = Vec::new();
        if let Peer::Server(id) = peer {
            self.granted.remove(&id);
        }
        self.change(now, |view| match peer {
            Peer::Server(id) => placement::remove_server(view, id),
            Peer::Worker(id) => drop(view.workers.remove(&id)),
            Peer::Coordinator | Peer::Newcomer(_) => {}
        });
        self.publish(now, &mut out);
        out
    }

    fn join(&mut self, join: Join, now: Time, out: &mut Vec<Said>) {
        let to = Peer::Newcomer(join.nonce);
        let view = self.view().clone();
        let servers = view.servers.iter().map(|(id, m)| (Peer::Server(*id), m));
        let mut members = servers.chain(view.workers.iter().map(|(id, m)| (Peer::Worker(*id), m)));
        if let Some((you, _)) = members.find(|(_, m)| m.nonce == join.nonce) {
            return out.push((to, ToMember::Welcome { nonce: join.nonce, you, run: self.durable.run }));
        }
        let is_first = view.servers.is_empty() && view.workers.is_empty();
        // What was decided by processes that are gone before anything came of it binds nobody.
        let decides = is_first && view.shards.is_empty() && self.durable.saved.is_none();
        let differs = joining::difference_in_size(&self.size, &join.settings)
            .or_else(|| joining::difference(&self.durable.settings, &join.settings).filter(|_| !decides));
        if let Some(why) = differs {
            return out.push((to, ToMember::Refused { nonce: join.nonce, why }));
        }
        if let Some((holder, host)) = view.named(join.role, &join.name) {
            let (heard, patience) = (self.heard.get(&holder).copied(), self.timing.patience());
            match self.claims.judge(join.nonce, holder, heard, patience, now) {
                Holder::Ended => {}
                Holder::Unknown => return,
                Holder::Lives => {
                    let why = Unwelcome::Taken { name: join.name, host: host.to_owned() };
                    return out.push((to, ToMember::Refused { nonce: join.nonce, why }));
                }
            }
        }
        let id = self.durable.next_id;
        self.durable.next_id += 1;
        self.first_join.get_or_insert(now);
        let Join { role, nonce, name, address, restored, shard_bytes, host, settings } = join;
        self.durable.settings = settings;
        let you = match role {
            Role::Server => Peer::Server(ServerId(id)),
            Role::Worker => Peer::Worker(SessionId(id)),
        };
        self.heard.insert(you, now);
        // Whoever had this name before is over, and with it its lease.
        let is_former = |m: &Member| role == Role::Server && m.name == name;
        let former = view.servers.iter().filter(|(_, m)| is_former(m)).map(|(id, _)| *id);
        let former: Vec<ServerId> = former.collect();
        self.granted.retain(|id, _| !former.contains(id));
        self.change(now, |view| {
            former.iter().for_each(|id| placement::remove_server(view, *id));
            view.workers.retain(|_, m| role == Role::Server || m.name != name);
            let member = Member { name, address, nonce, leaving: false, confirmed: false, host };
            if decides {
                view.shard_bytes.clear();
            }
            if view.shards.is_empty() && role == Role::Server {
                view.restored = view.restored.max(restored);
                if shard_bytes.len() > view.shard_bytes.len() {
                    view.shard_bytes = shard_bytes;
                }
            }
            match role {
                Role::Server => drop(view.servers.insert(ServerId(id), member)),
                Role::Worker => drop(view.workers.insert(SessionId(id), member)),
            }
        });
        out.push((to, ToMember::Welcome { nonce, you, run: self.durable.run }));
    }

    fn server_lives(&mut self, id: ServerId, heartbeat: Heartbeat, now: Time, out: &mut Vec<Said>) {
        // Who is no member any more may still have to agree to that.
        let adopted = self.adopted.entry(id).or_default();
        *adopted = (*adopted).max(heartbeat.epoch);
        if !self.view().servers.contains_key(&id) {
            return out.push((Peer::Server(id), ToMember::Expelled { run: self.durable.run }));
        }
        self.heard.insert(Peer::Server(id), now);
        self.claims.hear(Peer::Server(id));
        let current = heartbeat.epoch == self.view().epoch;
        self.change(now, |view| {
            let member = view.servers.get_mut(&id).expect("it is a member");
            member.leaving |= heartbeat.wish != Wish::Stay;
            member.confirmed = true;
            // A report from another view may speak of an earlier time that the newcomer joined.
            for (shard, newcomer) in heartbeat.caught_up.iter().filter(|_| current) {
                let Some(chain) = view.shards.get_mut(shard.0 as usize) else { continue };
                let joined =
                    chain.joining.filter(|(s, _)| s == newcomer && chain.members.last() == Some(&id));
                if joined.is_some() {
                    chain.joining = None;
                    chain.members.push(*newcomer);
                }
            }
            for shard in heartbeat.handed.iter().filter(|_| current) {
                let chain = view.shards.get_mut(shard.0 as usize);
                if let Some(chain) = chain.filter(|chain| chain.head() == Some(id)) {
                    chain.hand_over();
                }
            }
        });
        let yields = self.durable.yielding.get(&id).is_some_and(|e| self.adopted[&id] < *e);
        let lease = (!yields && self.view().servers.contains_key(&id)).then(|| {
            self.granted.insert(id, now + self.timing.patience());
            heartbeat.sent
        });
        let news = heartbeat.epoch < self.view().epoch;
        let may_see = self.settled(now) || self.durable.yielding.contains_key(&id);
        let view = (news && may_see).then(|| self.view().clone());
        out.push((Peer::Server(id), ToMember::Grant { lease, view, held: None, saved: None }));
    }

    fn worker_lives(&mut self, id: SessionId, heartbeat: &Heartbeat, now: Time, out: &mut Vec<Said>) {
        let to = Peer::Worker(id);
        if !self.view().workers.contains_key(&id) {
            return out.push((to, ToMember::Expelled { run: self.durable.run }));
        }
        self.heard.insert(to, now);
        self.claims.hear(to);
        self.durable.saved = self.durable.saved.max(heartbeat.saved);
        // The first slot may be somebody else's by now, who will say so in turn.
        if heartbeat.keeps && self.view().keeper.is_none() && self.view().owner(Slot(0)) == Some(id) {
            self.change(now, |view| view.keeper = view.workers.get(&id).map(|member| member.name.clone()));
        }
        // The last one brings its slots to one clock and saves them first, and goes when it has.
        let goes = match heartbeat.wish {
            Wish::Stay => false,
            Wish::Leave => self.view().workers.len() > 1,
            Wish::Go => true,
        };
        if goes {
            self.change(now, |view| drop(view.workers.remove(&id)));
            return out.push((to, ToMember::Expelled { run: self.durable.run }));
        }
        let news = heartbeat.epoch < self.view().epoch && self.settled(now);
        let (view, saved) = (news.then(|| self.view().clone()), self.durable.saved);
        out.push((to, ToMember::Grant { lease: None, view, held: None, saved }));
    }

    /// Makes a new view if `f` or what follows from it changes anything.
    fn change(&mut self, now: Time, f: impl FnOnce(&mut View)) {
        let old = self.view().clone();
        let mut view = View::clone(&old);
        f(&mut view);
        if view.lost().is_some() && self.go_back(&mut view) {
            self.first_join = Some(now);
        }
        let waited = self.first_join.is_some_and(|t| now >= t + self.timing.gather);
        let enough = |n: usize, announced: usize| n >= announced || (waited && n > 0);
        let servers: Vec<_> =
            view.servers.iter().filter(|(_, m)| m.confirmed && !m.leaving).map(|(id, _)| *id).collect();
        if view.shards.is_empty() && enough(servers.len(), self.size.n_servers) {
            let n_shards = self.size.n_shards.unwrap_or(view.shard_bytes.len()).max(1);
            let weights = placement::weights(&view.shard_bytes, n_shards);
            view.shards = placement::first_chains(&servers, &weights, self.size.replicas);
        }
        placement::improve(&mut view, self.size.replicas);
        self.durable.begun |= enough(view.workers.len(), self.size.n_workers);
        if self.durable.begun {
            let workers: Vec<_> = view.workers.keys().copied().collect();
            slots::assign(&mut view.slots, &workers);
        }
        if view == *old {
            return;
        }
        view.epoch = Epoch(old.epoch.0 + 1);
        for (i, before) in old.shards.iter().enumerate() {
            let after = view.shards.get(i).and_then(Chain::head);
            if let Some(head) = before.head().filter(|head| after != Some(*head)) {
                self.durable.yielding.insert(head, view.epoch);
            }
        }
        self.heard.retain(|peer, _| match peer {
            Peer::Server(id) => view.servers.contains_key(id),
            Peer::Worker(id) => view.workers.contains_key(id),
            Peer::Coordinator | Peer::Newcomer(_) => false,
        });
        self.durable.view = Arc::new(view);
    }

    /// A shard is lost, but not the run when there is a checkpoint: everybody begins a new life at its clock. Who was a
    /// member hears that it is none any more, as soon as it says anything, and the heads of before yield as ever, so nobody
    /// of the time before is heard in the time after. A server that has just come holds nothing, and stays.
    fn go_back(&mut self, view: &mut View) -> bool {
        let Some(clock) = self.durable.saved.max(view.restored) else { return false };
        view.servers.retain(|_, member| !member.confirmed);
        view.workers.clear();
        view.shards.clear();
        view.slots.fill(None);
        (view.restored, view.keeper) = (Some(clock), None);
        self.durable.begun = false;
        true
    }

    fn lease_ended(&self, id: ServerId, now: Time) -> bool {
        self.granted.get(&id).is_none_or(|until| *until <= now)
    }

    /// Whether everybody who has to yield has done so; then all may see the newest view.
    fn settled(&mut self, now: Time) -> bool {
        let mut yielding = std::mem::take(&mut self.durable.yielding);
        yielding.retain(|id, epoch| {
            let agreed = self.adopted.get(id).is_some_and(|e| e >= epoch);
            !agreed && !self.lease_ended(*id, now)
        });
        self.durable.yielding = yielding;
        self.durable.yielding.is_empty()
    }

    /// Sends the newest view to everybody who may see it, once.
    fn publish(&mut self, now: Time, out: &mut Vec<Said>) {
        let epoch = self.view().epoch;
        if self.published == epoch {
            return;
        }
        let grant = |view: &Arc<View>| {
            let view = Some(view.clone());
            ToMember::Grant { lease: None, view, held: None, saved: None }
        };
        let view = self.view().clone();
        if self.settled(now) {
            self.published = epoch;
            out.extend(view.servers.keys().map(|id| (Peer::Server(*id), grant(&view))));
            out.extend(view.workers.keys().map(|id| (Peer::Worker(*id), grant(&view))));
        } else {
            out.extend(self.durable.yielding.keys().map(|id| (Peer::Server(*id), grant(&view))));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{Activity, Counts};

    const MS: fn(u64) -> Time = Time::from_millis;

    struct Run(Coordinator, u64);

    impl Run {
        /// Two servers with one shard each, and a worker.
        fn new() -> (Self, [Peer; 3]) {
            let size = Size { n_servers: 2, n_workers: 1, n_shards: Some(2), n_slots: 1, replicas: 1 };
            let mut run = Self(Coordinator::new(size, Timing::default(), None, None), 0);
            let peers = ["server-0", "server-1", "worker-0"].map(|name| run.join(name, MS(0)));
            peers.iter().for_each(|peer| drop(run.lives(*peer, None, MS(0))));
            (run, peers)
        }

        fn join(&mut self, name: &str, now: Time) -> Peer {
            self.1 += 1;
            let role = if name.starts_with('s') { Role::Server } else { Role::Worker };
            let (nonce, name) = (self.1, name.to_owned());
            let (address, host, settings) = (String::new(), String::new(), Settings::new());
            let join =
                Join { role, nonce, name, address, restored: None, shard_bytes: vec![8; 2], host, settings };
            let told = self.0.handle(Peer::Newcomer(nonce), FromMember::Join(join), now);
            let you = |(_, told): &Said| match told {
                ToMember::Welcome { you, .. } => Some(*you),
                _ => None,
            };
            told.iter().find_map(you).expect("who asks is let in")
        }

        /// What a member is told that lives and knows no view yet.
        fn lives(&mut self, peer: Peer, saved: Option<Clock>, now: Time) -> Vec<ToMember> {
            self.says(peer, Heartbeat { saved, ..heartbeat(now) }, now)
        }

        /// A worker has the result and would tell it; whom it hears will.
        fn keeps(&mut self, peer: Peer, now: Time) -> Option<String> {
            self.says(peer, Heartbeat { keeps: true, ..heartbeat(now) }, now);
            self.0.view().keeper.clone()
        }

        fn says(&mut self, peer: Peer, heartbeat: Heartbeat, now: Time) -> Vec<ToMember> {
            let told = self.0.handle(peer, FromMember::Heartbeat(heartbeat), now);
            told.into_iter().filter(|(to, _)| *to == peer).map(|(_, told)| told).collect()
        }
    }

    fn heartbeat(sent: Time) -> Heartbeat {
        Heartbeat {
            epoch: Epoch(0),
            sent,
            caught_up: Vec::new(),
            wish: Wish::Stay,
            waiting_for: String::new(),
            clock: 0,
            counts: Counts::default(),
            saved: None,
            keeps: false,
            handed: Vec::new(),
            behind: None,
            activity: Activity::default(),
        }
    }

    fn view(told: &[ToMember]) -> Option<&View> {
        told.iter().find_map(|told| match told {
            ToMember::Grant { view, .. } => view.as_deref(),
            _ => None,
        })
    }

    #[test]
    fn a_run_that_goes_back_is_shown_to_nobody_while_a_head_of_before_may_answer() {
        let (mut run, [first, second, worker]) = Run::new();
        run.lives(worker, Some(3), MS(10));
        run.lives(second, None, MS(10));
        run.0.gone(first, MS(20));
        for before in [second, worker] {
            assert!(
                run.lives(before, None, MS(30)).contains(&ToMember::Expelled { run: RunId::default() }),
                "{before}"
            );
        }
        let again = ["server-0", "server-1", "worker-0"].map(|name| run.join(name, MS(40)));
        let patience = Timing::default().patience();
        for peer in again {
            assert_eq!(view(&run.lives(peer, None, MS(50))), None, "{peer}: the lease of {second} holds");
        }
        for peer in again {
            let told = run.lives(peer, None, MS(60) + patience);
            let view = view(&told).expect("the lease has ended");
            assert_eq!((view.restored, view.shards.len(), view.lost()), (Some(3), 2, None), "{peer}");
        }
    }

    #[test]
    fn of_all_who_ever_have_the_first_slot_one_tells_the_result() {
        let (mut run, [first, _, slow]) = Run::new();
        let quick = run.join("worker-1", MS(0));
        assert_eq!(run.keeps(quick, MS(10)), None, "the first slot is another's");
        assert_eq!(run.keeps(slow, MS(10)).as_deref(), Some("worker-0"));
        // It is silent for too long, and another gets its slot.
        let late = MS(20) + Timing::default().patience();
        run.lives(quick, None, late);
        run.0.tick(late);
        assert_eq!(run.0.view().owner(Slot(0)).map(Peer::Worker), Some(quick));
        assert_eq!(run.keeps(quick, late).as_deref(), Some("worker-0"));
        // What was told is worth nothing once the run goes back.
        run.lives(quick, Some(3), late);
        run.0.gone(first, late);
        assert_eq!(run.0.view().keeper, None);
    }

    #[test]
    fn without_a_checkpoint_a_lost_shard_is_lost() {
        let (mut run, [first, second, worker]) = Run::new();
        run.lives(second, None, MS(10));
        run.0.gone(first, MS(20));
        assert!(run.0.view().lost().is_some());
        assert!(view(&run.lives(worker, None, MS(30))).is_some_and(|view| view.lost().is_some()));
    }

    #[test]
    fn workers_that_are_asked_to_go_do_but_the_last_one_stays_until_it_goes() {
        let (mut run, [.., first]) = Run::new();
        let second = run.join("worker-1", MS(5));
        let out = ToMember::Expelled { run: RunId::default() };
        assert!(run.says(first, Heartbeat { wish: Wish::Leave, ..heartbeat(MS(10)) }, MS(10)).contains(&out));
        assert!(
            !run.says(second, Heartbeat { wish: Wish::Leave, ..heartbeat(MS(10)) }, MS(10)).contains(&out)
        );
        let Peer::Worker(last) = second else { unreachable!("it joined as a worker") };
        assert_eq!(run.0.view().slots, [Some(last)], "it has what the other left");
        assert!(run.says(second, Heartbeat { wish: Wish::Go, ..heartbeat(MS(20)) }, MS(20)).contains(&out));
        assert!(run.0.view().workers.is_empty());
    }
}
