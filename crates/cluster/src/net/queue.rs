//! What waits to be written to one connection.
//!
//! Whoever steps a machine puts frames in and never waits; one thread takes them out. What has not left is known not to be
//! lost, so nobody sends it again, and so what waits is no more than what the machines have under way. Beyond [`MOST`]
//! bytes it is lost all the same, as on any network, and said again: a peer that takes nothing in costs no memory without
//! end.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

use crate::ids::Peer;
use crate::message::Data;
use crate::wire::{Frame, Lanes, Past};

/// Once so many bytes wait, nothing is added.
const MOST: usize = 1 << 30;

/// Frames for one connection, and what went over it before.
#[derive(Clone)]
pub struct Queue {
    frames: Sender<Frame>,
    past: Arc<Mutex<BTreeMap<u8, Past>>>,
    waiting: Arc<AtomicUsize>,
    most: usize,
}

/// The other end.
pub struct Frames {
    frames: Receiver<Frame>,
    waiting: Arc<AtomicUsize>,
}

impl Queue {
    /// Nothing waits.
    pub fn new() -> (Self, Frames) {
        Self::up_to(MOST)
    }

    fn up_to(most: usize) -> (Self, Frames) {
        let (sender, frames) = channel();
        let waiting = Arc::<AtomicUsize>::default();
        (
            Self { frames: sender, past: Arc::default(), waiting: waiting.clone(), most },
            Frames { frames, waiting },
        )
    }

    /// The size of the frame; none when it is lost.
    pub fn send(&self, from: Peer, message: &Data) -> usize {
        // Before the frame is made: what it would add to the past, the other side would never hear of.
        if self.waiting.load(Ordering::Relaxed) >= self.most {
            return 0;
        }
        let mut past = self.past.lock().unwrap_or_else(PoisonError::into_inner);
        let frame = Frame::after(&mut past, from, message);
        let len = frame.len();
        self.waiting.fetch_add(len, Ordering::Relaxed);
        // A queue whose thread has ended belongs to a link that is about to be removed.
        let _ = self.frames.send(frame);
        len
    }

    /// Whether not everything has left.
    pub fn is_sending(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }
}

impl Frames {
    /// Writes frames until nobody can add one any more, the lowest lanes first.
    pub fn write(&self, to: &mut impl Write, mut lanes: Lanes) -> io::Result<()> {
        while let Ok(frame) = self.frames.recv() {
            lanes.add(frame);
            while !lanes.is_empty() {
                self.frames.try_iter().for_each(|frame| lanes.add(frame));
                let left = lanes.write(to)?;
                self.waiting.fetch_sub(left, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{CallId, Epoch, SessionId, ShardId, Slot, TableId};
    use crate::message::Call;
    use crate::state::Update;
    use crate::table::Delta;
    use crate::wire::{Incoming, Limits};

    fn push(clock: u64) -> Data {
        let rows = (0..16).map(|i| i * clock).collect();
        let delta = Delta::Rows(Arc::new(rows), vec![1.0; 1600].into());
        Data::Call(Call {
            epoch: Epoch(1),
            shard: ShardId(0),
            id: CallId(clock),
            slot: Slot(0),
            clock,
            create: None,
            push: Some(Arc::new(Update::from([(TableId(0), delta)]))),
            pull: None,
            fresh: false,
            save: false,
        })
    }

    #[test]
    fn a_peer_that_takes_nothing_in_costs_no_more_than_the_limit() {
        let me = Peer::Worker(SessionId(1));
        let (queue, frames) = Queue::up_to(50_000);
        let sizes: Vec<usize> = (1..100).map(|clock| queue.send(me, &push(clock))).collect();
        let kept: usize = sizes.iter().sum();
        assert!((50_000..60_000).contains(&kept) && sizes.last() == Some(&0), "{sizes:?}");
        assert!(queue.is_sending());
        // What was kept is whole, and what was lost left no trace in the key sets.
        let waiting = queue.waiting.clone();
        drop(queue);
        let mut bytes = Vec::new();
        frames.write(&mut bytes, Lanes::default()).unwrap();
        assert_eq!(waiting.load(Ordering::Relaxed), 0);
        let (mut incoming, mut bytes) = (Incoming::new(Limits::default()), &bytes[..]);
        let mut n = 0;
        while let Some((from, Data::Call(call))) = incoming.read(&mut bytes).unwrap() {
            n += 1;
            assert_eq!((from, call.clock), (me, n));
        }
        assert_eq!(n as usize, sizes.iter().filter(|size| **size > 0).count());
    }
}
