//! How a cluster stands: what its coordinator knows of every process, for people and for programs.

use std::fmt;
use std::time::Duration;

use crate::ids::{Clock, Epoch, Peer};
use crate::message::{Activity, Counts, Role};
use crate::view::View;

/// All processes of a cluster.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Report {
    /// The number of the view.
    pub epoch: Epoch,
    /// Into how many parts the parameters are divided.
    pub n_shards: u32,
    /// Into how many parts a batch is divided.
    pub n_slots: u32,
    /// Servers, then workers.
    pub members: Vec<Standing>,
}

/// One process.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// Its name.
    pub name: String,
    /// What it is.
    pub role: Role,
    /// The host that it runs on.
    pub host: String,
    /// The shards or slots that it has, in words; nothing when it was silent for so long that it has lost its place.
    pub holds: Option<String>,
    /// What it last told; nothing when it was not heard of yet.
    pub told: Option<Progress>,
}

/// How far a process has come.
#[derive(Debug, Clone, PartialEq)]
pub struct Progress {
    /// The lowest clock of its slots or shards.
    pub clock: Clock,
    /// Clocks per second, since somebody last asked.
    pub speed: f32,
    /// What it has done so far.
    pub counts: Counts,
    /// Since when it was not heard of.
    pub silence: Duration,
    /// What it waits for, in words, and who holds that up; empty when it works.
    pub waiting_for: String,
    /// What it does, as far as is known.
    pub activity: Activity,
}

impl Progress {
    /// The share of its life that it waited.
    pub fn idle(&self) -> f64 {
        (self.counts.waited.as_secs_f64() / self.counts.lived.as_secs_f64().max(1e-3)).min(1.0)
    }
}

/// One line per process: who it is, how far, how fast, and what it waits for.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = |role: Role| self.members.iter().filter(|m| m.role == role && m.holds.is_some()).count();
        let counted = |n: usize, what: &str| format!("{n} {what}{}", if n == 1 { "" } else { "s" });
        let (servers, workers) = (counted(n(Role::Server), "server"), counted(n(Role::Worker), "worker"));
        let (shards, slots) =
            (counted(self.n_shards as usize, "shard"), counted(self.n_slots as usize, "slot"));
        let Self { epoch, members, .. } = self;
        write!(f, "view {}: {servers}, {workers}, {shards}, {slots}", epoch.0)?;
        members.iter().try_for_each(|member| write!(f, "\n{member}"))
    }
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let (None, Some(told)) = (&self.holds, &self.told) {
            return write!(f, "{}: {}", self.name, told.waiting_for);
        }
        write!(f, "{}: {}, ", self.name, self.holds.as_deref().unwrap_or("no place"))?;
        let Some(told) = &self.told else { return write!(f, "not heard of yet") };
        write!(f, "clock {}, {:.1} steps/s, ", told.clock, told.speed)?;
        let Counts { received, sent, waited, staleness, .. } = told.counts;
        if self.role == Role::Worker {
            let (waited, share) = (waited.as_secs_f64(), 100.0 * told.idle());
            write!(f, "staleness {staleness}, waited {waited:.1} s ({share:.0} %), ")?;
        }
        let (received, sent, ago) = (received as f64 / 1e6, sent as f64 / 1e6, told.silence.as_millis());
        write!(f, "received {received:.1} MB, sent {sent:.1} MB, heard of {ago} ms ago, ")?;
        match (told.waiting_for.as_str(), told.activity.what.as_str()) {
            ("", "") => write!(f, "works"),
            ("", _) => write!(f, "{}", told.activity),
            (waiting_for, _) => write!(f, "{waiting_for}"),
        }
    }
}

/// Such as "in backward for 4.2 s, usually 1.1 s".
impl fmt::Display for Activity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "in {} for {}", self.what, seconds(self.lasts))?;
        match self.usual {
            Duration::ZERO => write!(f, ", for the first time"),
            usual => write!(f, ", usually {}", seconds(usual)),
        }
    }
}

/// A time for people to read.
pub(crate) fn seconds(time: Duration) -> String {
    if time < Duration::from_millis(100) {
        format!("{:.0} ms", time.as_secs_f64() * 1e3)
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}

/// The shards or slots of a member, in words.
pub(crate) fn holds(view: &View, peer: Peer) -> String {
    let list = |numbers: Vec<String>| if numbers.is_empty() { "none".into() } else { numbers.join(" ") };
    match peer {
        Peer::Server(id) => {
            let roles = view.shards.iter().enumerate().filter_map(|(i, c)| {
                let role = match c.pipeline().position(|s| s == id)? {
                    0 => "head",
                    _ if c.joining.is_some_and(|(s, _)| s == id) => "joins",
                    _ => "copy",
                };
                Some(format!("{i}:{role}"))
            });
            format!("shards {}", list(roles.collect()))
        }
        Peer::Worker(id) => {
            format!("slots {}", list(view.slots_of(id).iter().map(|s| s.0.to_string()).collect()))
        }
        Peer::Coordinator | Peer::Newcomer(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everybody_has_a_line_that_says_what_it_waits_for() {
        let [waited, lived] = [1, 4].map(Duration::from_secs);
        let counts = Counts { received: 2_500_000, sent: 0, waited, staleness: 3, lived };
        let told = Progress {
            clock: 7,
            speed: 12.5,
            counts,
            silence: Duration::from_millis(30),
            waiting_for: String::new(),
            activity: Activity {
                what: "backward".into(),
                lasts: Duration::from_millis(4200),
                usual: Duration::from_millis(30),
            },
        };
        let member = |name: &str, role, told| {
            let (name, host, holds) = (name.into(), "b3".into(), Some("none".into()));
            Standing { name, role, host, holds, told }
        };
        let report = Report {
            epoch: Epoch(2),
            n_shards: 1,
            n_slots: 4,
            members: vec![member("s", Role::Server, None), member("w", Role::Worker, Some(told))],
        };
        let lines = [
            "view 2: 1 server, 1 worker, 1 shard, 4 slots",
            "s: none, not heard of yet",
            "w: none, clock 7, 12.5 steps/s, staleness 3, waited 1.0 s (25 %), received 2.5 MB, sent 0.0 MB, \
             heard of 30 ms ago, in backward for 4.2 s, usually 30 ms",
        ];
        assert_eq!(report.to_string(), lines.join("\n"));
    }
}
