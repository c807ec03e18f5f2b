//! What a state machine offers to whoever runs it on sockets.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::ids::{Peer, ServerId};
use crate::landing::Landing;
use crate::message::{Message, Outgoing, Time};
use crate::report::Report;
use crate::view::Lease;

/// What runs on sockets.
pub trait Machine: Send + 'static {
    /// Takes in one message.
    fn handle(&mut self, from: Peer, message: Message, now: Time) -> Vec<Outgoing>;
    /// Lets time pass.
    fn tick(&mut self, now: Time) -> Vec<Outgoing>;
    /// The connection to a peer broke a moment ago.
    fn reconnected(&mut self, peer: Peer, now: Time) -> Vec<Outgoing>;
    /// How the cluster stands, as far as it is for this process to say.
    fn status(&mut self, now: Time) -> Option<Report> {
        let _ = now;
        None
    }
    /// Bytes received and sent so far, told before each tick.
    fn count(&mut self, received: u64, sent: u64) {
        let _ = (received, sent);
    }
    /// To whom not everything has left yet, told before each tick.
    fn sending(&mut self, to: BTreeSet<Peer>, now: Time) {
        let _ = (to, now);
    }
    /// Takes back what it may not say any more, now that a step has taken its time.
    fn release(&mut self, out: &mut [Outgoing], now: Time) {
        let _ = (out, now);
    }
    /// Its right to answer and how long it is given for, if it needs one.
    fn lease(&self) -> Option<(Lease, Duration)> {
        None
    }
    /// Which peers it wants to speak to and does not reach, told before each tick.
    fn troubled(&mut self, troubles: Vec<Trouble>) {
        let _ = troubles;
    }
    /// With whom it has a connection, told before each tick.
    fn connected(&mut self, to: BTreeSet<Peer>) {
        let _ = to;
    }
    /// Where it wants answers received.
    fn landing(&self) -> Arc<Landing> {
        Arc::default()
    }
    /// Who it is.
    fn me(&self) -> Peer;
    /// Where a server listens, as far as it knows.
    fn address(&self, server: ServerId) -> Option<String>;
    /// Whether it has come to its end.
    fn over(&self) -> bool;
}

/// A peer that is not reached.
#[derive(Debug, Clone)]
pub struct Trouble {
    /// Whom.
    pub peer: Peer,
    /// Where.
    pub address: String,
    /// What happened the last time.
    pub problem: String,
    /// When the first attempt began of those that failed since it was last reached.
    pub since: Instant,
}
