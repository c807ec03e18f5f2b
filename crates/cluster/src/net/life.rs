//! Whether a process of this host still lives, for others on it to look up.

use std::fs::{read_dir, read_link, read_to_string};

/// What tells this process from all others, ever, on any host: the boot of its system, where its number counts, the number,
/// and when it began. `None` where the system does not tell.
pub fn myself() -> Option<String> {
    let pid = std::process::id();
    Some(format!("{} {pid} {}", here()?, state(pid)?.1))
}

/// Whether this was a process of this host that does nothing any more. False where that cannot be known.
pub fn has_ended(process: &str) -> bool {
    let mut words = process.rsplitn(3, ' ');
    let (began, pid, place) = (words.next(), words.next().and_then(|pid| pid.parse().ok()), words.next());
    let (Some(began), Some(pid), Some(place)) = (began, pid, place) else { return false };
    if here().as_deref() != Some(place) {
        return false;
    }
    let Some((state, _)) = state(pid).filter(|(_, other)| other == began) else { return true };
    // Ended, and nobody has asked with what. That may be said of its first thread alone.
    let last = || read_dir(format!("/proc/{pid}/task")).is_ok_and(|threads| threads.count() <= 1);
    matches!(&state[..], "Z" | "X") && last()
}

/// The boot of this system, and the space in which its numbers of processes count.
fn here() -> Option<String> {
    let boot = read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let numbers = read_link("/proc/self/ns/pid").ok()?;
    Some(format!("{} {}", boot.trim(), numbers.display()))
}

/// The state of the process of this number, and when it began in ticks of the system's clock.
fn state(pid: u32) -> Option<(String, String)> {
    let stat = read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name comes before, in brackets, and may have anything in it.
    let mut fields = stat.rsplit_once(')')?.1.split_ascii_whitespace();
    Some((fields.next()?.to_owned(), fields.nth(18)?.to_owned()))
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_has_ended_when_it_does_nothing_any_more_and_only_here_is_that_known() {
        let me = myself().expect("Linux tells");
        assert!(!has_ended(&me));
        let mut child = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let other = format!("{} {} {}", here().unwrap(), child.id(), state(child.id()).unwrap().1);
        assert!(!has_ended(&other));
        child.kill().unwrap();
        // It is there until somebody asks how it ended, but has ended all the same.
        while !has_ended(&other) {
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
    }
}
