//! Real processes: sockets, threads, the clock on the wall, and the environment.

pub mod config;
pub mod handshake;
mod metrics;
pub mod node;
pub mod process;
mod sharing;
