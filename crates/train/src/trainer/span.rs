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

    /// Its steps, when an epoch has `per_epoch`.
    pub fn steps(self, per_epoch: u64) -> u64 {
        match self {
            Span::Steps(n) => n,
            Span::Epochs(n) => n.saturating_mul(per_epoch),
        }
    }
}
