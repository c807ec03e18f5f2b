//! Whether a run is over, and who waits for what when it does not end.

use super::{MS, Machine, World};
use crate::ids::ShardId;
use crate::placement;
use crate::simulate::check::Violation;
use crate::state::State;

impl World {
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

    pub(super) fn finished(&self) -> bool {
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

    pub(super) fn check_end(&mut self) -> Result<(), Violation> {
        for shard in (0..self.schedule.n_shards).map(ShardId) {
            let state = self.head_state(shard).expect("finished looked at it").clone();
            self.checks.end(shard, self.schedule.clocks, &state)?;
        }
        Ok(())
    }

    /// Who waits for what, for the report of a run that makes no progress.
    pub(super) fn waits(&self) -> String {
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
