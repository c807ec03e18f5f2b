//! The names of things that messages speak of.

use std::fmt;

macro_rules! id {
    ($(#[$doc:meta])* $name:ident($inner:ty), $word:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($word, " {}"), self.0)
            }
        }
    };
}

id!(
    /// One life of a server process. A restarted server is another one.
    ServerId(u64),
    "server"
);
id!(
    /// One life of a worker process. A restarted worker is another one.
    SessionId(u64),
    "session"
);
id!(
    /// A part of the parameters, owned by one chain of servers.
    ShardId(u32),
    "shard"
);
id!(
    /// A part of every batch. The number of slots is fixed for a run; who computes a slot is not.
    Slot(u32),
    "slot"
);
id!(
    /// A number that grows with every change of the view.
    Epoch(u64),
    "epoch"
);
id!(
    /// A table of parameters.
    TableId(u32),
    "table"
);
id!(
    /// One request of a session, for matching its answer.
    CallId(u64),
    "call"
);
id!(
    /// One run of a cluster, by its coordinator's memory: one that has lost it begins another run.
    RunId(u64),
    "run"
);

/// How many steps a slot has made. A push at clock `c` is the slot's `c`-th, counted from zero.
pub type Clock = u64;

/// Whom a message comes from or goes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Peer {
    /// The one that keeps the view.
    Coordinator,
    /// A member of the view that holds shards.
    Server(ServerId),
    /// A member of the view that computes.
    Worker(SessionId),
    /// A process without a number yet, known by the random number it joins with.
    Newcomer(u64),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Coordinator => write!(f, "coordinator"),
            Peer::Server(id) => id.fmt(f),
            Peer::Worker(id) => id.fmt(f),
            Peer::Newcomer(_) => write!(f, "newcomer"),
        }
    }
}
