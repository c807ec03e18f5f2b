//! Where the shards of a run are saved and come from.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use thalweg_train::TrainError;

use crate::error::in_full;
use crate::ids::{Clock, ShardId};
use crate::say::say;
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

/// A checkpoint that was read, once for all shards: the one to go on from, or a later one when the run was taken back to it.
pub(crate) struct Read<T>(Mutex<Option<(Clock, Arc<T>)>>);

impl<T> Read<T> {
    pub(crate) fn new(first: Option<(Clock, T)>) -> Self {
        Self(Mutex::new(first.map(|(clock, read)| (clock, Arc::new(read)))))
    }

    /// The one of this clock. Ends the process of a server that does not see it: to begin at different clocks would mix
    /// two runs.
    pub(crate) fn at(&self, clock: Clock, read: impl FnOnce() -> Result<T, TrainError>) -> Arc<T> {
        let mut held = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, found)) = held.as_ref().filter(|(at, _)| *at == clock) {
            return found.clone();
        }
        let found = read().map(Arc::new).unwrap_or_else(|e| {
            let why = in_full(&e);
            let sees = format!("the run goes on from clock {clock}, which this process does not see ({why})");
            let hint = "is the folder shared? Or is that run over, and the coordinator still remembers it, by the file in \
                        THALWEG_STATE or under THALWEG_CLUSTER in etcd?";
            say("thalweg", format_args!("{sees}: {hint}"));
            std::process::exit(1)
        });
        *held = Some((clock, found.clone()));
        found
    }
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
                    say(&name, format_args!("cannot save {shard} at clock {}: {problem}", snapshot.clock));
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
