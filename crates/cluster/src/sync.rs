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

/// How far workers may drift apart.
///
/// ```
/// use thalweg_cluster::Sync;
/// assert_eq!("ssp:3".parse::<Sync>().unwrap(), Sync::Ssp(3));
/// assert!("ssp".parse::<Sync>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
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
}

impl Sync {
    /// How many clocks a read may lag behind; `None` is no bound.
    pub fn staleness(self) -> Option<Clock> {
        match self {
            Sync::Bsp | Sync::Backup(_) => Some(0),
            Sync::Ssp(s) => Some(s),
            Sync::Async => None,
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
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Sync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sync::Bsp => write!(f, "bsp"),
            Sync::Ssp(s) => write!(f, "ssp:{s}"),
            Sync::Async => write!(f, "async"),
            Sync::Backup(b) => write!(f, "backup:{b}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mode_reads_back_from_its_own_text() {
        for sync in [Sync::Bsp, Sync::Ssp(7), Sync::Async, Sync::Backup(2)] {
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
    fn a_bad_mode_names_what_was_given() {
        for text in ["", "ssp:", "ssp:-1", "bsp:1", "backup", "fast"] {
            let e = text.parse::<Sync>().unwrap_err().to_string();
            assert!(e.contains(&format!("{text:?}")), "{e}");
        }
    }
}
