//! Where the shards of a run are saved and come from.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use crate::ids::{Clock, ShardId};
use crate::server::Source;
use crate::state::Snapshot;

/// How a server saves the snapshot of a shard whose first it is.
pub type Save = Arc<dyn Fn(ShardId, &Snapshot) -> Result<(), String> + Send + std::marker::Sync>;

/// How the shards of a run are saved at clock boundaries, and brought back.
#[derive(Clone)]
pub struct Storage {
    /// A snapshot is taken at every multiple of this clock.
    pub every: Clock,
    /// The clock of the checkpoint to go on from.
    pub restored: Option<Clock>,
    /// A shard of that checkpoint.
    pub load: Source,
    /// Saves a shard.
    pub save: Save,
}

/// Ends the process of a server that was asked for a checkpoint it does not see: to begin at different clocks would mix
/// two runs.
pub(crate) fn unseen(clock: Clock) -> ! {
    eprintln!("the run goes on from clock {clock}, which this process does not see: is the folder shared?");
    std::process::exit(1)
}

/// A thread that saves snapshots, so that no step waits for a disk. What is to be saved is shared with the server until
/// it changes.
pub(crate) struct Saver {
    queue: Option<Sender<(ShardId, Snapshot)>>,
    thread: Option<JoinHandle<()>>,
}

impl Saver {
    pub(crate) fn new(name: &str, save: Save) -> Self {
        let (queue, snapshots) = channel();
        let name = name.to_owned();
        let thread = std::thread::spawn(move || {
            for (shard, snapshot) in snapshots {
                if let Err(problem) = save(shard, &snapshot) {
                    // Training goes on; the checkpoint stays without its manifest.
                    eprintln!("{name}: cannot save {shard} at clock {}: {problem}", snapshot.clock);
                }
            }
        });
        Self { queue: Some(queue), thread: Some(thread) }
    }

    pub(crate) fn add(&self, shard: ShardId, snapshot: Snapshot) {
        if let Some(queue) = &self.queue {
            let _ = queue.send((shard, snapshot));
        }
    }

    /// Waits until everything is saved.
    pub(crate) fn finish(&mut self) {
        drop(self.queue.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
