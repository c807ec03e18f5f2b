//! What the schedule does to processes, and what is done by hand when all copies of a shard are gone.

use std::collections::BTreeMap;

use super::{Happening, MS, Machine, TIMING, World, size};
use crate::coordinator::{Coordinator, Size};
use crate::ids::{Clock, SessionId};
use crate::simulate::schedule::{Node, What};

impl World {
    pub(super) fn fault(&mut self, what: &What) {
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
    pub(super) fn whole(&self) -> Option<Clock> {
        let storage = self.storage.lock().expect("one thread");
        let n_shards = self.schedule.n_shards as usize;
        let mut by_clock: BTreeMap<Clock, usize> = BTreeMap::new();
        storage.keys().for_each(|(clock, _)| *by_clock.entry(*clock).or_default() += 1);
        by_clock.into_iter().rev().find(|(_, n)| *n == n_shards).map(|(clock, _)| clock)
    }

    /// All copies of a shard are gone, and nobody has told the coordinator of a whole snapshot: everything starts again from the last whole snapshot.
    pub(super) fn restore(&mut self) {
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
}
