//! How long, or how often: in steps or in epochs.

/// So many steps, one batch each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Steps(pub u64);

/// So many passes over the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Epochs(pub u64);

/// A length of training, in steps or in epochs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// So many steps.
    Steps(u64),
    /// So many epochs.
    Epochs(u64),
}

impl From<Steps> for Span {
    fn from(Steps(n): Steps) -> Self {
        Span::Steps(n)
    }
}

impl From<Epochs> for Span {
    fn from(Epochs(n): Epochs) -> Self {
        Span::Epochs(n)
    }
}

impl Span {
    /// Whether training that stands here has reached it.
    pub fn is_reached(self, step: u64, epoch: u64) -> bool {
        match self {
            Span::Steps(n) => step >= n,
            Span::Epochs(n) => epoch >= n,
        }
    }

    /// Whether something that happens this often happens here, after a step.
    pub(crate) fn is_due(self, step: u64, epoch: u64, is_end_of_epoch: bool) -> bool {
        match self {
            Span::Steps(n) => step.is_multiple_of(n.max(1)),
            Span::Epochs(n) => is_end_of_epoch && epoch.is_multiple_of(n.max(1)),
        }
    }

    /// Its steps, when an epoch has `per_epoch`.
    pub fn steps(self, per_epoch: u64) -> u64 {
        match self {
            Span::Steps(n) => n,
            Span::Epochs(n) => n.saturating_mul(per_epoch),
        }
    }
}
