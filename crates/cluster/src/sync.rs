//! What a worker may read: the consistency that the user chose.
//!
//! One rule covers all modes. A slot at clock `c` may read once the shard holds every update of clocks
//! below `c - s`, and the slot's own. BSP is `s = 0`, async is no bound. With `s = 0` the pushes of one
//! clock are gathered into a round and applied together in the order of their slots, so that the result
//! does not depend on who came first; otherwise each push is applied when it comes.

use std::fmt;
use std::str::FromStr;

use crate::error::ClusterError;
use crate::ids::Clock;
use crate::local::Averaging;

/// How far workers may drift apart.
///
/// ```
/// use thalweg_cluster::Sync;
/// assert_eq!("ssp:3".parse::<Sync>().unwrap(), Sync::Ssp(3));
/// assert!("ssp".parse::<Sync>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Sync {
    /// Every step waits for the steps before it, of all.
    #[default]
    Bsp,
    /// Stale synchronous parallel: nobody reads what lacks updates older than so many clocks.
    Ssp(u64),
    /// Nobody waits for anybody.
    Async,
    /// A round is closed without the slowest so many slots, whose gradients are dropped.
    Backup(u32),
    /// Local SGD: every slot takes so many steps of its own, then all go on from the mean.
    Local(u64),
    /// Elastic averaging: every slot keeps weights of its own; after so many steps they and the common weights are drawn
    /// towards each other by this share of their distance. Nobody waits for anybody.
    Elastic {
        /// The share.
        share: f32,
        /// The steps.
        steps: u64,
    },
}

impl Sync {
    /// How many clocks a read may lag behind; `None` is no bound.
    pub fn staleness(self) -> Option<Clock> {
        match self {
            Sync::Bsp | Sync::Backup(_) | Sync::Local(_) => Some(0),
            Sync::Ssp(s) => Some(s),
            Sync::Async | Sync::Elastic { .. } => None,
        }
    }

    /// What is left for the servers of it: steps of a worker's own are no affair of theirs.
    pub fn consistency(self) -> Self {
        match self {
            Sync::Local(_) => Sync::Bsp,
            Sync::Elastic { .. } => Sync::Async,
            other => other,
        }
    }

    /// How the common weights and a worker's own come together, where workers have some.
    pub fn averaging(self) -> Option<Averaging> {
        match self {
            Sync::Local(_) => Some(Averaging::Local),
            Sync::Elastic { share, .. } => Some(Averaging::Elastic(share)),
            _ => None,
        }
    }

    /// Steps between two exchanges with the servers.
    pub fn steps_per_clock(self) -> u64 {
        match self {
            Sync::Local(steps) | Sync::Elastic { steps, .. } => steps.max(1),
            _ => 1,
        }
    }

    /// Whether the pushes of a clock are applied together.
    pub fn gathers(self) -> bool {
        self.staleness() == Some(0)
    }

    /// The predicate that closes a round: whether `arrived` of `slots` pushes suffice.
    pub fn closes(self, arrived: usize, slots: usize) -> bool {
        arrived >= self.quorum(slots)
    }

    /// How many pushes make a round.
    pub fn quorum(self, slots: usize) -> usize {
        match self {
            Sync::Backup(b) => slots.saturating_sub(b as usize).max(1),
            _ => slots,
        }
    }
}

impl Sync {
    /// What the program's argument `--sync MODE` says, or else the environment (`thalweg launch --sync`), or else BSP.
    pub fn from_args() -> Result<Self, ClusterError> {
        Self::from_words(std::env::args(), std::env::var("THALWEG_SYNC").ok())
    }

    fn from_words(
        words: impl IntoIterator<Item = String>,
        environment: Option<String>,
    ) -> Result<Self, ClusterError> {
        let mut words = words.into_iter();
        while let Some(word) = words.next() {
            match word.strip_prefix("--sync") {
                Some("") => return words.next().unwrap_or_default().parse(),
                Some(value) if value.starts_with('=') => return value[1..].parse(),
                _ => {}
            }
        }
        environment.map_or(Ok(Sync::Bsp), |text| text.parse())
    }
}

impl FromStr for Sync {
    type Err = ClusterError;

    fn from_str(text: &str) -> Result<Self, ClusterError> {
        let wrong = || ClusterError::BadSync { got: text.to_owned() };
        match text.split_once(':') {
            None if text == "bsp" => Ok(Sync::Bsp),
            None if text == "async" => Ok(Sync::Async),
            Some(("ssp", "0")) => Ok(Sync::Bsp),
            Some(("ssp", s)) => s.parse().map(Sync::Ssp).map_err(|_| wrong()),
            Some(("backup", b)) => b.parse().map(Sync::Backup).map_err(|_| wrong()),
            Some(("local", k)) => steps(k).map(Sync::Local).ok_or_else(wrong),
            Some(("easgd", how)) => {
                let (share, k) = how.split_once(':').unwrap_or((how, "1"));
                let share = share.parse().ok().filter(|share| (f32::MIN_POSITIVE..1.0).contains(share));
                let elastic = share.zip(steps(k)).map(|(share, steps)| Sync::Elastic { share, steps });
                elastic.ok_or_else(wrong)
            }
            _ => Err(wrong()),
        }
    }
}

fn steps(text: &str) -> Option<u64> {
    text.parse().ok().filter(|n| *n > 0)
}

impl fmt::Display for Sync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sync::Bsp => write!(f, "bsp"),
            Sync::Ssp(s) => write!(f, "ssp:{s}"),
            Sync::Async => write!(f, "async"),
            Sync::Backup(b) => write!(f, "backup:{b}"),
            Sync::Local(k) => write!(f, "local:{k}"),
            Sync::Elastic { share, steps: 1 } => write!(f, "easgd:{share}"),
            Sync::Elastic { share, steps } => write!(f, "easgd:{share}:{steps}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_reads_back_from_its_own_text() {
        let elastic = |steps| Sync::Elastic { share: 0.1, steps };
        let own = [Sync::Local(8), elastic(1), elastic(16)];
        for sync in [Sync::Bsp, Sync::Ssp(7), Sync::Async, Sync::Backup(2)].into_iter().chain(own) {
            assert_eq!(sync.to_string().parse::<Sync>().unwrap(), sync);
        }
    }

    #[test]
    fn the_argument_comes_before_the_environment() {
        let from = |words: &str, env: Option<&str>| {
            Sync::from_words(words.split_whitespace().map(str::to_owned), env.map(str::to_owned)).ok()
        };
        assert_eq!(from("program --sync ssp:3", Some("async")), Some(Sync::Ssp(3)));
        assert_eq!(from("program --sync=backup:1 x", None), Some(Sync::Backup(1)));
        assert_eq!(from("program", Some("async")), Some(Sync::Async));
        assert_eq!(from("program", None), Some(Sync::Bsp));
        assert_eq!(from("program --sync", None), None);
    }

    #[test]
    fn a_bad_mode_names_what_was_given_and_what_there_is() {
        let own = ["local", "local:0", "easgd:", "easgd:0", "easgd:1", "easgd:nan", "easgd:0.1:0", "coded:1"];
        for text in ["", "ssp:", "ssp:-1", "bsp:1", "backup", "fast"].into_iter().chain(own) {
            let e = text.parse::<Sync>().unwrap_err().to_string();
            assert!(e.contains(&format!("{text:?}")), "{e}");
            assert!(e.contains("local:STEPS") && e.contains("easgd:SHARE"), "{e}");
        }
    }
}
