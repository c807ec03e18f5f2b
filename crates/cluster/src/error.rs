//! What can go wrong between processes.

use std::time::Duration;

use thalweg_train::TrainError;
use thiserror::Error;

use crate::ids::{Clock, ShardId, TableId};
use crate::net::handshake::Unproved;
use crate::report::seconds;

/// Everything that a cluster call can refuse or fail with.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum ClusterError {
    /// The coordinator does not let this process take part.
    #[error(transparent)]
    Unwelcome(#[from] Unwelcome),
    /// A consistency that is none.
    #[error(
        "sync: {got:?} is no mode; use bsp, ssp:STALENESS, async, backup:SLOTS, local:STEPS or easgd:SHARE[:STEPS], with \
         STEPS from 1 and SHARE between 0 and 1"
    )]
    BadSync {
        /// The text given.
        got: String,
    },
    /// A codec that is none.
    #[error("codec: {got:?} is none; use f32, bf16, int8 or topk:ONE_IN, such as topk:100 or topk:0.01")]
    BadCodec {
        /// The text given.
        got: String,
    },
    /// A variable of the environment that makes no sense.
    #[error("{name} is {got:?}; it should be {want}")]
    Variable {
        /// The variable.
        name: String,
        /// Its value.
        got: String,
        /// What it should be.
        want: String,
    },
    /// A certificate or key that cannot be used.
    #[error("{path}: {problem}")]
    Certificate {
        /// The file.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// Listening beyond this host without a secret.
    #[error(
        "{address} is reachable from other hosts: set THALWEG_SECRET, the same for all processes, or THALWEG_TLS_CERT, \
         THALWEG_TLS_KEY and THALWEG_TLS_CA, or listen on 127.0.0.1"
    )]
    Open {
        /// The address.
        address: String,
    },
    /// An address that cannot be listened at.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// The address.
        address: String,
        /// Why.
        source: std::io::Error,
    },
    /// This process and the coordinator do not know the same secret.
    #[error("coordinator {address}: {why}")]
    Secret {
        /// The coordinator's address.
        address: String,
        /// What is wrong.
        why: Unproved,
    },
    /// The coordinator is not to be reached.
    #[error("no coordinator for {} ({problem}); is THALWEG_COORDINATOR right, and is it running?", seconds(*lasted))]
    Unreachable {
        /// For how long it was tried.
        lasted: Duration,
        /// The address and what happened.
        problem: String,
    },
    /// Nobody listens any more where the coordinator was, and nobody has started it again.
    #[error(
        "the coordinator is there no more, for {} ({problem}); resume from the last checkpoint. Who starts it again sets \
         THALWEG_RESTART_MS to what that may take",
        seconds(*lasted)
    )]
    Ended {
        /// For how long it was waited for.
        lasted: Duration,
        /// The address and what happened.
        problem: String,
    },
    /// A server that the coordinator hears of, and this process does not.
    #[error(
        "{name} at {address} could not be reached for {} ({problem}); is its port open from here?",
        seconds(*lasted)
    )]
    NotReached {
        /// Whom.
        name: String,
        /// Where it listens.
        address: String,
        /// For how long it was tried.
        lasted: Duration,
        /// What happened.
        problem: String,
    },
    /// The coordinator's file.
    #[error("the coordinator's file {path}: {problem}")]
    StateFile {
        /// The file.
        path: String,
        /// What is wrong with it.
        problem: String,
    },
    /// etcd does not answer, or refuses.
    #[error("etcd at {endpoint}: {problem}")]
    Etcd {
        /// Its address.
        endpoint: String,
        /// What happened.
        problem: String,
    },
    /// Another process has become the coordinator.
    #[error("another process has become the coordinator")]
    Deposed,
    /// A place for checkpoints that is none.
    #[error("{url:?} is no place for checkpoints: {problem}")]
    Place {
        /// The place as given.
        url: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The signal to end came; the work so far is safe on the servers.
    #[error("asked to end at clock {clock}")]
    Interrupted {
        /// The lowest clock of this worker's slots.
        clock: Clock,
    },
    /// A rule, a function or a state machine has panicked; what it was changing is worthless.
    #[error("a rule, a function or this process itself has panicked: {message}")]
    Panicked {
        /// What the panic said.
        message: String,
    },
    /// The coordinator was started again and remembers nothing of this run.
    #[error(
        "the coordinator has forgotten this run: it was started again without its file; set THALWEG_STATE for it, and resume \
         from a checkpoint"
    )]
    Forgotten,
    /// All copies of a shard are gone.
    #[error(
        "{shard}: every server that held it is gone; resume from a checkpoint, or begin again where there is none. Two servers \
         have copies of each other's shards"
    )]
    Lost {
        /// The shard.
        shard: ShardId,
    },
    /// All servers are gone, and there is a checkpoint, but none of them comes back to go on from it.
    #[error(
        "every server is gone, and none has come for {}; resume from the checkpoint at clock {clock}. Who starts them \
         again sets THALWEG_RESTART_MS to what that may take",
        seconds(*lasted)
    )]
    Deserted {
        /// Its clock.
        clock: Clock,
        /// For how long they were waited for.
        lasted: Duration,
    },
    /// A parameter or slot that is not held as f32.
    #[error("{name:?} is {got}; servers hold f32 parameters, and slots of f32 and f64")]
    Dtype {
        /// The parameter or slot.
        name: String,
        /// Its dtype.
        got: String,
    },
    /// Clipping by the norm of all gradients, which lie on different servers.
    #[error("no server sees the norm of all gradients: clip in the loss, or use clip_value")]
    Clip,
    /// Something of a trainer that has no meaning on a cluster.
    #[error("{what} is not to be had on a cluster: {instead}")]
    Unsupported {
        /// What.
        what: &'static str,
        /// What to do.
        instead: &'static str,
    },
    /// Samples that a program cannot learn from.
    #[error("{problem}")]
    Samples {
        /// What is wrong with them, and what would be right.
        problem: String,
    },
    /// A net could not be trained, or its run not be written.
    #[error(transparent)]
    Train(#[from] Box<TrainError>),
    /// A shard refused a request that no retry can mend.
    #[error(transparent)]
    Refused(#[from] Refusal),
}

impl From<TrainError> for ClusterError {
    fn from(error: TrainError) -> Self {
        Self::Train(Box::new(error))
    }
}

/// Why a process cannot take part in a run.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unwelcome {
    /// It would compute something else than the others.
    #[error(
        "join: {setting} is {} in the run and {} in this process; start it with the program, the arguments and the \
         variables of the others",
        said(run),
        said(own)
    )]
    Differs {
        /// What differs.
        setting: String,
        /// What the run has; nothing when it has none.
        run: Option<String>,
        /// What this process has.
        own: Option<String>,
    },
    /// Another process has its name, and lives.
    #[error(
        "join: another process on host {host} is {name:?} in this run, and lives; set THALWEG_NAME to another name"
    )]
    Taken {
        /// The name.
        name: String,
        /// The host of whoever has it.
        host: String,
    },
}

fn said(value: &Option<String>) -> &str {
    value.as_deref().unwrap_or("nothing")
}

/// Why a shard refuses a request for good. These end a call; everything else is retried.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Refusal {
    /// A table that is there already, otherwise than asked for.
    #[error("create: {table} exists with another shape or rule")]
    Mismatch {
        /// The table.
        table: TableId,
    },
    /// A rule that the server's program did not register.
    #[error(
        "create: {table} wants the rule `{rule}`, which the server does not know; register it before joining"
    )]
    UnknownRule {
        /// The table.
        table: TableId,
        /// The rule's name.
        rule: String,
    },
    /// A function that the server's program did not register.
    #[error("compute: the server does not know the function `{function}`; register it before joining")]
    UnknownFunction {
        /// The function's name.
        function: String,
    },
    /// A table that was not created when the run began, and never will be.
    #[error("there is no {table}; is it among the tables that the program begins with?")]
    NoTable {
        /// The table.
        table: TableId,
    },
    /// A push or pull of another form than the table's.
    #[error("{table} holds {want}, the request has {got}")]
    Form {
        /// The table.
        table: TableId,
        /// What the table holds.
        want: String,
        /// What the request carries.
        got: String,
    },
    /// Row numbers that are not sorted or not unique.
    #[error("{table}: row numbers must rise strictly; sort them and add up repeated rows")]
    Keys {
        /// The table.
        table: TableId,
    },
    /// A clock that the slot has not reached, or a version that is gone.
    #[error("clock {got} is not the one served, {want}")]
    Clock {
        /// The clock that the shard expects.
        want: Clock,
        /// The clock that came.
        got: Clock,
    },
    /// A slot that the run does not have.
    #[error("slot {got} does not exist; the run has {n_slots}")]
    Slot {
        /// The slot.
        got: u32,
        /// How many there are.
        n_slots: usize,
    },
}

/// An error with its causes, each said once.
pub(crate) fn in_full(e: &dyn std::error::Error) -> String {
    let mut text = e.to_string();
    let mut cause = e.source();
    while let Some(e) = cause {
        let more = e.to_string();
        if !text.contains(&more) {
            text = format!("{text}: {more}");
        }
        cause = e.source();
    }
    text
}
