//! A server's signs of life while its machine is at work.
//!
//! An update may take longer than a lease, and whoever steps the machine has its lock for as long. So the last sign of
//! life that the machine gave is repeated beside it, with the present time, and the leases that are granted for it are
//! noted beside it too. That promises nothing in the machine's place: what it says is looked at once more, by the time
//! and the lease of then, before it leaves (`Machine::release`).

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::ids::Peer;
use crate::message::{FromMember, Heartbeat, Message, Outgoing, Time, ToMember};
use crate::view::Lease;

/// A machine that has not come back after so long is taken for hung, and its lease may end.
const LONGEST_STEP: Duration = Duration::from_secs(120);

/// The last sign of life, if any was given under a number that still counts.
#[derive(Default)]
pub struct Pulse(Mutex<Option<Last>>);

struct Last {
    me: Peer,
    heartbeat: Heartbeat,
    said: Time, // by whomever
    own: Time,  // by the machine itself
    lease: Lease,
    length: Duration,
}

impl Pulse {
    /// The machine says this.
    pub fn note(&self, me: Peer, out: &[Outgoing], lease: Option<(Lease, Duration)>, now: Time) {
        let Some((lease, length)) = lease else { return };
        for (_, message) in out {
            match message {
                Message::FromMember(FromMember::Heartbeat(heartbeat)) => {
                    // Who has caught up is said by the machine alone, which knows in which view.
                    let heartbeat =
                        Heartbeat { caught_up: Vec::new(), handed: Vec::new(), ..heartbeat.clone() };
                    let lease = lease.clone();
                    *self.last() = Some(Last { me, heartbeat, said: now, own: now, lease, length });
                }
                Message::FromMember(FromMember::Join(_)) => *self.last() = None,
                _ => {}
            }
        }
    }

    /// What to say to the coordinator in the machine's place, when it has been silent for too long.
    pub fn due(&self, now: Time) -> Option<(Peer, Message)> {
        let mut last = self.last();
        let last = last.as_mut()?;
        // The machine itself says something every fifth of its lease.
        if now < last.said + last.length / 4 || now > last.own + LONGEST_STEP {
            return None;
        }
        last.said = now;
        let heartbeat = Heartbeat { sent: now, ..last.heartbeat.clone() };
        Some((last.me, FromMember::Heartbeat(heartbeat).into()))
    }

    /// The coordinator says this. Whether that is all there is to it, and the machine need not be asked.
    pub fn hear(&self, told: &ToMember) -> bool {
        let mut last = self.last();
        match (told, last.as_ref()) {
            (ToMember::Grant { lease: Some(sent), view, .. }, Some(own)) => {
                own.lease.renew(*sent, own.length);
                view.is_none()
            }
            (ToMember::Expelled { .. }, _) => {
                *last = None;
                false
            }
            _ => false,
        }
    }

    fn last(&self) -> MutexGuard<'_, Option<Last>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
