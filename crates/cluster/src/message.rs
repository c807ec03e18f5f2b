//! What processes say to each other. The wire format, gRPC and the simulator carry exactly these.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Refusal, Unwelcome};
use crate::ids::{CallId, Clock, Epoch, Peer, RunId, ServerId, ShardId, Slot};
use crate::state::{Parts, Pushed, Reads, Record, Sent, Update, Wants};
use crate::view::View;

/// Time on a process's own clock since some moment of its own.
pub type Time = Duration;

/// A message and where it goes.
pub type Outgoing = (Peer, Message);

/// Everything that crosses a process boundary.
#[derive(Debug, Clone)]
pub enum Message {
    /// Between workers and servers: over the data plane.
    Data(Data),
    /// To the coordinator: over gRPC.
    FromMember(FromMember),
    /// From the coordinator: over gRPC.
    ToMember(ToMember),
}

impl From<Data> for Message {
    fn from(data: Data) -> Self {
        Self::Data(data)
    }
}

impl From<FromMember> for Message {
    fn from(message: FromMember) -> Self {
        Self::FromMember(message)
    }
}

impl From<ToMember> for Message {
    fn from(message: ToMember) -> Self {
        Self::ToMember(message)
    }
}

/// What a process says to the coordinator.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FromMember {
    /// It wants to take part.
    Join(Join),
    /// Again and again: still here.
    Heartbeat(Heartbeat),
}

/// What the coordinator says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToMember {
    /// The newcomer's number.
    Welcome {
        /// The random number it joined with.
        nonce: u64,
        /// Who it is from now on.
        you: Peer,
        /// The number of the run.
        run: RunId,
    },
    /// The view, and for how long to trust it.
    Grant {
        /// When the heartbeat that this answers was sent, by its sender's clock; a lease counts from then.
        lease: Option<Time>,
        /// The view, when it is news.
        view: Option<Arc<View>>,
        /// Whom the round waits for that a worker waits for, in words.
        held: Option<String>,
        /// The clock of the checkpoint to which the run would be taken back now, for workers.
        saved: Option<Clock>,
    },
    /// You are no member any more.
    Expelled {
        /// The number of the run. Whoever belongs to another one was forgotten with it.
        run: RunId,
    },
    /// You cannot take part.
    Refused {
        /// The random number it joined with.
        nonce: u64,
        /// The reason.
        why: Unwelcome,
    },
}

/// What workers and servers say to each other.
#[derive(Debug, Clone)]
pub enum Data {
    /// Worker to the head of a chain.
    Call(Call),
    /// The head's answer.
    Answer(Answer),
    /// Down a chain: the next record.
    Replicate {
        /// The sender's view.
        epoch: Epoch,
        /// Which shard.
        shard: ShardId,
        /// The record's number.
        index: u64,
        /// The change.
        record: Arc<Record>,
    },
    /// Up a chain: the rest of it has every record up to this number.
    Replicated {
        /// The sender's view.
        epoch: Epoch,
        /// Which shard.
        shard: ShardId,
        /// The number.
        index: u64,
    },
    /// To the newest of a chain: the whole state.
    Install {
        /// The sender's view.
        epoch: Epoch,
        /// Which shard.
        shard: ShardId,
        /// What to start from.
        state: Arc<Sent>,
    },
}

impl Data {
    /// The shard that a message is about.
    pub fn shard(&self) -> ShardId {
        match self {
            Data::Call(Call { shard, .. })
            | Data::Answer(Answer { shard, .. })
            | Data::Replicate { shard, .. }
            | Data::Replicated { shard, .. }
            | Data::Install { shard, .. } => *shard,
        }
    }

    /// The view that a message was sent in; an answer is matched by its number instead.
    pub fn epoch(&self) -> Option<Epoch> {
        match self {
            Data::Call(call) => Some(call.epoch),
            Data::Answer(_) => None,
            Data::Replicate { epoch, .. } | Data::Replicated { epoch, .. } | Data::Install { epoch, .. } => {
                Some(*epoch)
            }
        }
    }
}

/// A request: any of create, push and pull, for one slot and shard.
#[derive(Debug, Clone)]
pub struct Call {
    /// The sender's view.
    pub epoch: Epoch,
    /// Which shard.
    pub shard: ShardId,
    /// For matching the answer; rises within a session.
    pub id: CallId,
    /// On whose behalf.
    pub slot: Slot,
    /// The push's number, or without a push the clock at which to read. A pull that comes with a push
    /// reads at the next clock.
    pub clock: Clock,
    /// Tables to create unless they exist.
    pub create: Option<Arc<Parts>>,
    /// Gradients.
    pub push: Option<Arc<Update>>,
    /// What to read afterwards.
    pub pull: Option<Arc<Wants>>,
    /// The read waits for everybody's updates below its clock, whatever the consistency allows.
    pub fresh: bool,
    /// Every slot stands at this clock, and the shard saves itself as it is.
    pub save: bool,
}

impl Call {
    /// The clock at which its pull reads.
    pub fn read_clock(&self) -> Clock {
        if self.push.is_some() { self.clock + 1 } else { self.clock }
    }
}

/// The answer to a call.
#[derive(Debug, Clone)]
pub struct Answer {
    /// The sender's view.
    pub epoch: Epoch,
    /// Which shard.
    pub shard: ShardId,
    /// Which call.
    pub id: CallId,
    /// What became of it.
    pub outcome: Outcome,
}

/// What became of a call.
#[derive(Debug, Clone)]
pub enum Outcome {
    /// All of it was done.
    Done(Done),
    /// Nothing was done: the sender's view is not the server's. Get the newer one and ask again.
    Fenced,
    /// Nothing was done, and asking again will not help.
    Refused(Refusal),
}

/// A call that was done.
#[derive(Debug, Clone)]
pub struct Done {
    /// How the push ended.
    pub pushed: Option<Pushed>,
    /// What the pull read.
    pub reads: Option<Reads>,
    /// Every round below this clock is closed.
    pub version: Clock,
    /// The slot's next clock.
    pub mark: Clock,
}

/// What a process wants to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Role {
    /// Holds shards.
    Server,
    /// Computes.
    Worker,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Server => "server",
            Self::Worker => "worker",
        })
    }
}

/// A wish to take part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Join {
    /// As what.
    pub role: Role,
    /// Drawn at random by each life of a process.
    pub nonce: u64,
    /// The same for all lives of a process. A new one is let in when the one before is known to be over.
    pub name: String,
    /// Where others reach it, for servers.
    pub address: String,
    /// The clock of the newest checkpoint that it sees, if the run is to go on from one.
    pub restored: Option<Clock>,
    /// The shards into which it would divide the parameters, each by its bytes, for servers: they know the program.
    pub shard_bytes: Vec<u64>,
    /// The host that it runs on, for people to look at.
    pub host: String,
    /// What decides the mathematics, in words by name; the same for all processes of a run.
    pub settings: Settings,
}

/// What decides the mathematics of a run, in words by name.
pub type Settings = BTreeMap<String, String>;

/// Whether a process wants to stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Wish {
    /// It does.
    #[default]
    Stay,
    /// It was asked to go, and does once nothing depends on it: a server when others have its shards, a worker unless it is
    /// the last.
    Leave,
    /// It goes, whatever depends on it.
    Go,
}

/// What a process does now, for people to look at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Activity {
    /// In words; empty when nothing is known.
    pub what: String,
    /// For so long.
    pub lasts: Duration,
    /// It has usually taken so long.
    pub usual: Duration,
}

/// A round that waits, or with staleness a clock that reads wait for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Behind {
    /// Its clock.
    pub clock: Clock,
    /// The first slot that it waits for.
    pub slot: Slot,
}

/// A sign of life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heartbeat {
    /// The newest view it has adopted.
    pub epoch: Epoch,
    /// The sender's clock.
    pub sent: Time,
    /// Servers that have caught up with a shard of the sender's, and that it now waits for.
    pub caught_up: Vec<(ShardId, ServerId)>,
    /// Whether it wants to stay.
    pub wish: Wish,
    /// What it waits for, in words; empty when it works.
    pub waiting_for: String,
    /// How far it has come: the lowest clock of its slots or shards.
    pub clock: Clock,
    /// What it has done so far.
    pub counts: Counts,
    /// The clock of the newest checkpoint that it has made whole.
    pub saved: Option<Clock>,
    /// The round that waits for somebody, of a server.
    pub behind: Option<Behind>,
    /// What it does now.
    pub activity: Activity,
    /// It has the result of the first slot, and would tell it.
    pub keeps: bool,
    /// Shards of which the one that will be first has everything.
    pub handed: Vec<ShardId>,
}

/// What a process has done since it began, for people to look at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Bytes received.
    pub received: u64,
    /// Bytes sent.
    pub sent: u64,
    /// Time spent waiting for others.
    pub waited: Duration,
    /// By how many clocks the last read lagged behind what a round would have given.
    pub staleness: Clock,
    /// Time since the process began.
    pub lived: Duration,
}
