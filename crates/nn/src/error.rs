//! What can go wrong with weights and files.

use std::fmt::{self, Write as _};

use thalweg_formats::FormatError;
use thalweg_tensor::{Meta, OpError};
use thiserror::Error;

/// A request that was refused. Nothing was changed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum NnError {
    /// A file could not be read or written.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// An op refused its operands.
    #[error(transparent)]
    Op(#[from] OpError),
    /// The tensors at hand are not those that are wanted.
    #[error(transparent)]
    Mismatch(#[from] Box<Mismatch>),
}

/// Every difference between the tensors that a module has and those that came.
#[derive(Debug, Clone, PartialEq, Default, Error)]
pub struct Mismatch {
    /// Where they came from.
    pub source_name: String,
    /// Names that the module has and that did not come.
    pub missing: Vec<String>,
    /// Names that came and that the module has not.
    pub unexpected: Vec<String>,
    /// Names with another shape or dtype: what the module has, and what came.
    pub misshapen: Vec<(String, Meta, Meta)>,
}

impl Mismatch {
    /// Whether everything fits.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unexpected.is_empty() && self.misshapen.is_empty()
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut lines = String::new();
        for (title, names) in [("missing", &self.missing), ("unexpected", &self.unexpected)] {
            for name in names {
                write!(lines, "\n  {title}: {name}")?;
            }
        }
        for (name, want, got) in &self.misshapen {
            write!(lines, "\n  misshapen: {name} is {want} here and {got} there")?;
        }
        let n = self.missing.len() + self.unexpected.len() + self.misshapen.len();
        let tensors = if n == 1 { "1 tensor does" } else { &format!("{n} tensors do") };
        write!(f, "load {}: {tensors} not fit, nothing was changed{lines}", self.source_name)
    }
}
