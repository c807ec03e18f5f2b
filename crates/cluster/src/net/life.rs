//! Whether a process has ended: of this host, for the others on it to look up; of any, by its port.

use std::fs::{metadata, read_dir, read_link, read_to_string};
use std::io::{Error, ErrorKind};
use std::net::{TcpStream, ToSocketAddrs, UdpSocket};
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// What tells this process from all others, ever, on any host: the boot of its system, the spaces in which its number and
/// its times count, its user, the number, and when it began. `None` where the system does not tell.
pub fn myself() -> Option<String> {
    let pid = std::process::id();
    Some(format!("{} {pid} {}", here()?, Stat::of(pid).ok()?.began))
}

/// Whether this was a process of this host and user that does nothing any more. False where that cannot be known.
pub fn has_ended(process: &str) -> bool {
    let mut words = process.rsplitn(3, ' ');
    let (began, pid, place) = (words.next(), words.next().and_then(|pid| pid.parse().ok()), words.next());
    let (Some(began), Some(pid), Some(place)) = (began, pid, place) else { return false };
    if here().as_deref() != Some(place) {
        return false;
    }
    match Stat::of(pid) {
        Ok(now) if now.began != began => true,
        // Ended, and nobody has asked with what. That may be said of its first thread alone.
        Ok(now) if matches!(now.state, 'Z' | 'X') => {
            read_dir(format!("/proc/{pid}/task")).is_ok_and(|threads| threads.count() <= 1)
        }
        Ok(_) => false,
        // A user sees all processes of its own.
        Err(e) => e.kind() == ErrorKind::NotFound,
    }
}

/// Whether a process is held by a signal and does nothing, where the system tells.
pub fn is_stopped(pid: u32) -> bool {
    Stat::of(pid).is_ok_and(|now| now.state == 'T')
}

/// Whether an address, with a port, is one of this host. Copies of a virtual machine have the same boot, but not that.
pub fn is_own(address: &str) -> bool {
    let mut found = address.to_socket_addrs().into_iter().flatten();
    found.any(|address| UdpSocket::bind((address.ip(), 0)).is_ok())
}

/// Whether nobody listens at an address any more, once that is known. Asked beside whoever wants to know, who must not wait.
pub(super) fn is_closed(address: &str) -> Arc<AtomicBool> {
    let (closed, address) = (Arc::<AtomicBool>::default(), address.to_owned());
    let answer = closed.clone();
    std::thread::spawn(move || {
        let refused = |e: Error| e.kind() == ErrorKind::ConnectionRefused;
        answer.store(TcpStream::connect(&address).is_err_and(refused), Ordering::Relaxed);
    });
    closed
}

/// The boot of this system, the spaces in which numbers of processes and times count, and the user. `None` where what the
/// system tells of processes is about those of another space.
fn here() -> Option<String> {
    if read_link("/proc/self").ok()?.to_str()? != std::process::id().to_string() {
        return None;
    }
    let boot = read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let [numbers, times] = ["pid", "time"].map(|space| read_link(format!("/proc/self/ns/{space}")).ok());
    let user = metadata("/proc/self").ok()?.uid();
    Some(format!("{} {} {} {user}", boot.trim(), numbers?.display(), times.unwrap_or_default().display()))
}

/// What the system tells of a process.
struct Stat {
    state: char,
    began: String, // in ticks of the system's clock
}

impl Stat {
    fn of(pid: u32) -> Result<Self, Error> {
        let text = read_to_string(format!("/proc/{pid}/stat"))?;
        // The name comes before, in brackets, and may have anything in it.
        let mut fields = text.rsplit(')').next().into_iter().flat_map(str::split_ascii_whitespace);
        let state = fields.next().and_then(|word| word.chars().next());
        let found = state.zip(fields.nth(18)).map(|(state, began)| Self { state, began: began.to_owned() });
        found.ok_or_else(|| ErrorKind::InvalidData.into())
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_process_has_ended_when_it_does_nothing_any_more_and_only_here_is_that_known() {
        let me = myself().expect("Linux tells");
        assert!(!has_ended(&me));
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let other = format!("{} {} {}", here().unwrap(), child.id(), Stat::of(child.id()).unwrap().began);
        assert!(!has_ended(&other) && !is_stopped(child.id()));
        child.kill().unwrap();
        // It is there until somebody asks how it ended, but has ended all the same.
        let end = Instant::now() + Duration::from_secs(60);
        while !has_ended(&other) {
            assert!(Instant::now() < end, "it was killed");
            std::thread::yield_now();
        }
        child.wait().unwrap();
        assert!(has_ended(&other));
        // Another process with its number is not that process.
        let (place, began) = me.rsplit_once(' ').unwrap();
        assert!(has_ended(&format!("{place} {}", began.parse::<u64>().unwrap() - 1)));
        let elsewhere = other.replacen(|c: char| c.is_ascii_hexdigit(), "x", 1);
        for unknown in [elsewhere.as_str(), "", "1 2", "a b c d"] {
            assert!(!has_ended(unknown), "{unknown:?}");
        }
        assert!(is_own("127.0.0.1:1") && !is_own("192.0.2.1:1") && !is_own("nowhere"));
    }

    #[test]
    fn a_port_is_closed_when_nobody_listens_there_any_more() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let open = is_closed(&address);
        listener.accept().unwrap();
        drop(listener);
        let closed = is_closed(&address);
        let end = Instant::now() + Duration::from_secs(60);
        while !closed.load(Ordering::Relaxed) {
            assert!(Instant::now() < end, "nobody listens");
            std::thread::yield_now();
        }
        assert!(!open.load(Ordering::Relaxed));
    }
}
