//! Who leads, and what a coordinator has stored before it says anything.

use std::time::Duration;

use super::{Happening, Leader, MS, Machine, TIMING, World, size};
use crate::coordinator::Coordinator;
use crate::ids::SessionId;
use crate::message::{Outgoing, Time};
use crate::simulate::check::Violation;
use crate::simulate::election::{self, Term};
use crate::simulate::schedule::Node;

impl World {
    /// A coordinator that goes on from what is stored.
    pub(super) fn leader(&self, now: Time, election: Option<(Term, Time)>) -> Box<Leader> {
        let durable = self.store.durable().clone();
        let coordinator = Coordinator::recover(size(&self.schedule), TIMING, durable.clone(), now);
        Box::new(Leader { coordinator, stored: durable, election, storing: None })
    }

    /// A candidate tries to lead; a leader that cannot be sure of its place gives it up.
    pub(super) fn elect(&mut self, node: Node, tick: bool) {
        let now = self.local(node);
        // Short of the lease by more than two clocks may differ in speed.
        let believed = now + Duration::from_micros(election::LEASE - election::LEASE / 10);
        let reaches = !self.cut_off(node);
        let (life, machine) = {
            let process = self.processes.get_mut(&node).expect("looked up above");
            (process.life, &mut process.machine)
        };
        match machine {
            Machine::Candidate if tick && reaches => {
                let Some(term) = self.store.campaign(self.now) else { return };
                let leader = self.leader(now, Some((term, believed)));
                self.processes.get_mut(&node).expect("looked up above").machine =
                    Machine::Coordinator(leader);
                // The others hear of it, each in its time.
                let at = self.now + self.draw.below(50 * MS);
                self.push(at, Happening::Named(node, life));
            }
            Machine::Coordinator(leader) => {
                let Some((term, until)) = &mut leader.election else { return };
                // Who was late to ask stays deposed, whatever the store says.
                let in_time = now < *until;
                if in_time && tick && reaches && self.store.keep_alive(*term, self.now) {
                    *until = believed;
                } else if !in_time || (tick && reaches) {
                    *machine = Machine::Candidate;
                }
            }
            _ => {}
        }
    }

    /// What a coordinator says leaves it once what it must remember is stored: in a file at once, in a store that others
    /// write too after a while.
    pub(super) fn once_stored(&mut self, node: Node, out: Vec<Outgoing>) -> Result<Vec<Outgoing>, Violation> {
        let process = self.processes.get_mut(&node).expect("it has just acted");
        let life = process.life;
        let Machine::Coordinator(leader) = &mut process.machine else { return Ok(out) };
        if *leader.coordinator.durable() == leader.stored {
            return Ok(out);
        }
        leader.storing = Some(out);
        if leader.election.is_none() {
            self.stored(node)?;
            return Ok(Vec::new());
        }
        let at = self.now + self.draw.below(4 * MS) + if self.draw.happens(100) { 200 * MS } else { 0 };
        self.push(at, Happening::Stored(node, life));
        Ok(Vec::new())
    }

    /// What a coordinator must remember reaches the store.
    pub(super) fn stored(&mut self, node: Node) -> Result<(), Violation> {
        let process = self.processes.get_mut(&node).expect("it waits for this");
        let Machine::Coordinator(leader) = &mut process.machine else { return Ok(()) };
        let Some(out) = leader.storing.take() else { return Ok(()) };
        let (durable, before) = (leader.coordinator.durable().clone(), leader.stored.view.clone());
        leader.stored = durable.clone();
        let term = leader.election.map(|(term, _)| term);
        if term.is_some_and(|term| !self.store.write(term, &durable, self.now)) {
            process.machine = Machine::Candidate;
            return Ok(());
        }
        if term.is_none() {
            self.store.replace(durable.clone());
        }
        if durable.view.epoch != before.epoch {
            self.checks.view(&durable.view)?;
        }
        if let (false, [], Some(clock)) =
            (before.shards.is_empty(), &durable.view.shards[..], durable.view.restored)
        {
            self.checks.restored(clock, durable.view.epoch, SessionId(durable.next_id));
            self.checks.failovers[2] += 1;
            self.storage.lock().expect("one thread").retain(|(c, _), _| *c <= clock);
        }
        if durable.view.lost().is_some() && before.lost().is_none() {
            self.push(self.now, Happening::Lost);
        }
        self.send(node, out);
        Ok(())
    }
}
