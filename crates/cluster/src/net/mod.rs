//! Real processes: sockets, threads, the clock on the wall, and the environment.

pub mod config;
mod control;
#[cfg(feature = "etcd")]
pub mod etcd;
pub mod handshake;
pub mod life;
pub mod machine;
pub mod membership;
mod metrics;
pub mod node;
pub mod process;
mod pulse;
mod queue;
mod reading;
mod sharing;
mod silence;
pub mod stream;
#[cfg(feature = "tls")]
pub mod tls;
mod told;
pub(crate) mod waits;
