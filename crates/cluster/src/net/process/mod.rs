//! The processes of a cluster: coordinator, server, and a worker's session, each on sockets; and how they begin and end.

mod coordinator;
mod server;
mod worker;

pub use coordinator::{CoordinatorProcess, coordinate, start_coordinator};
pub use server::{ServerProcess, serve, start_server, stop_server};
pub(crate) use worker::Among;
pub use worker::WorkerProcess;

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::config::Config;
use super::control::{self, Unreached};
use super::handshake::random;
use crate::error::ClusterError;
use crate::ids::Clock;
use crate::message::{Join, Role};
use crate::report::Report;

/// Between two looks at whether to end.
const LOOK: Duration = Duration::from_millis(20);
/// A server that was asked to go has nobody to hand over to when the coordinator was silent for so long.
pub(crate) const ALONE: Duration = Duration::from_secs(2);
/// The status with which a worker or server ends that was asked to, before the work was done, and has left in good order.
/// It is that of `EX_TEMPFAIL`: nothing is wrong, and somebody else goes on. `thalweg launch` goes on without it.
pub const LEFT: i32 = 75;

/// Why a server has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Departure {
    /// The workers are done.
    Done,
    /// It was asked to go.
    Asked,
}

/// A flag that is raised when the process is asked to end, or when the one that started it is gone.
pub fn ending(config: &Config) -> Result<Arc<AtomicBool>, ClusterError> {
    let end = Arc::new(AtomicBool::new(false));
    // Ctrl-C in a terminal reaches all processes of a launcher, which asks each in its turn.
    let ignored = Arc::new(AtomicBool::new(false));
    let interrupt = if config.parent.is_some() { &ignored } else { &end };
    for (signal, end) in [(signal_hook::consts::SIGTERM, &end), (signal_hook::consts::SIGINT, interrupt)] {
        let failed = |source| ClusterError::Listen { address: format!("signal {signal}"), source };
        signal_hook::flag::register(signal, end.clone()).map_err(failed)?;
    }
    if let Some(parent) = config.parent {
        std::thread::spawn(move || {
            while std::os::unix::process::parent_id() == parent {
                std::thread::sleep(Duration::from_millis(100));
            }
            // Nobody is left to tell: whoever started the run is gone.
            std::process::exit(1);
        });
    }
    Ok(end)
}

/// Asks a coordinator how things stand. One that is not there yet, or not known yet, is waited for, but not for long; one that
/// is silent for as long as the caller bears.
pub fn ask_status(config: &Config, borne: Option<Duration>) -> Result<Report, ClusterError> {
    const AT_MOST: Duration = Duration::from_secs(2);
    let (membership, began) = (config.membership(), Instant::now());
    let borne = borne.map_or(AT_MOST, |borne| borne.max(AT_MOST));
    // Where one is elected, there may be another in a moment.
    let absent = if config.etcd.is_some() { borne } else { AT_MOST };
    loop {
        let answer = match membership.coordinator() {
            Some(address) => control::ask(&address, &config.security, AT_MOST),
            None => {
                let nobody = || "nobody is the coordinator".into();
                Err(Unreached::Now(membership.problem().unwrap_or_else(nobody)))
            }
        };
        match answer {
            Ok(report) => return Ok(report),
            Err(Unreached::Unproved { address, why }) => return Err(ClusterError::Secret { address, why }),
            Err(Unreached::Refused(problem)) if began.elapsed() >= absent => {
                return Err(ClusterError::Unreachable { lasted: began.elapsed(), problem });
            }
            Err(Unreached::Now(problem) | Unreached::Silent(problem)) if began.elapsed() >= borne => {
                return Err(ClusterError::Unreachable { lasted: began.elapsed(), problem });
            }
            Err(_) => std::thread::sleep(5 * LOOK),
        }
    }
}

/// The name of this host, for people to look at.
fn host() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    match name.trim() {
        "" => std::env::var("HOSTNAME").unwrap_or_default(),
        name => name.to_owned(),
    }
}

fn join(role: Role, config: &Config, address: &str, restored: Option<Clock>) -> Join {
    let (nonce, shard_bytes) = (u64::from_le_bytes(random()), config.shard_bytes.clone());
    let (name, address, host) = (config.name.clone(), address.to_owned(), host());
    Join { role, nonce, name, address, restored, shard_bytes, host, settings: config.settings() }
}

fn bind(config: &Config, address: &str) -> Result<(TcpListener, String), ClusterError> {
    let listener = config.listen(address)?;
    let failed = |source| ClusterError::Listen { address: address.to_owned(), source };
    let address = config.reached_at(listener.local_addr().map_err(failed)?);
    Ok((listener, address))
}
