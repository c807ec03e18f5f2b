//! What can be wrong with data, as values.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use thalweg_core::Shape;
use thiserror::Error;

use crate::order::Position;

/// Why data could not be had.
#[derive(Debug, Error)]
pub enum DataError {
    /// The system refused.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A record that cannot be understood.
    #[error(transparent)]
    Record(#[from] BadRecord),
    /// Inputs and targets that do not belong together.
    #[error("x of shape {x} and y of shape {y} must have the same number of rows")]
    Rows {
        /// Shape of the inputs.
        x: Shape,
        /// Shape of the targets.
        y: Shape,
    },
    /// A saved position in another data set.
    #[error(
        "position {} of {} samples does not fit a data set of {samples} samples (resume with the data it was saved with)",
        position.sample, position.samples
    )]
    Position {
        /// As saved.
        position: Position,
        /// Samples there are.
        samples: usize,
    },
    /// A column that a table does not have.
    #[error("no column {name:?}; there are {}", have.join(", "))]
    NoColumn {
        /// The name asked for.
        name: String,
        /// The names there are.
        have: Vec<String>,
    },
    /// A column that cannot be used as asked.
    #[error("column {name:?} {reason}")]
    Column {
        /// The column.
        name: String,
        /// What stands against it, and what to do.
        reason: &'static str,
    },
    /// A column with holes where numbers are needed.
    #[error("column {name:?} has {count} missing values; fill them with `Table::fill`, or drop those rows")]
    Holes {
        /// The column.
        name: String,
        /// How many.
        count: usize,
    },
    /// Nothing where something is needed.
    #[error("{} holds no {what}", path.display())]
    Empty {
        /// The file or folder.
        path: PathBuf,
        /// What it should hold.
        what: &'static str,
    },
    /// Every sample of a batch was broken, so there is nothing left to train on.
    #[error("every sample of a batch of {count} is broken; the last one: {last}")]
    BrokenBatch {
        /// Samples in the batch.
        count: usize,
        /// The last of them.
        last: BadRecord,
    },
    /// A value outside what the model can be given.
    #[error("{what} {got} is out of range: {need}")]
    Range {
        /// What it is.
        what: &'static str,
        /// Its value.
        got: usize,
        /// What would be right.
        need: String,
    },
    /// A character that a vocabulary does not have.
    #[error("character {found:?} at {at} is not in the vocabulary of {size}")]
    UnknownChar {
        /// The character.
        found: char,
        /// Its place, counted in characters.
        at: usize,
        /// Size of the vocabulary.
        size: usize,
    },
    /// A tokeniser's file that is none.
    #[error("tokeniser: {reason}")]
    Tokeniser {
        /// What is wrong.
        reason: String,
    },
    /// A download that did not come.
    #[error("download {url}: {reason} ({have} bytes are kept in {}; run again to go on)", part.display())]
    Download {
        /// The address.
        url: String,
        /// What happened last.
        reason: String,
        /// Bytes that are there.
        have: u64,
        /// Where they are.
        part: PathBuf,
    },
    /// A file that is not what it should be.
    #[error("{} has sha256 {got}, not {want}; {advice}", path.display())]
    Checksum {
        /// The file.
        path: PathBuf,
        /// The checksum expected.
        want: String,
        /// The checksum it has.
        got: String,
        /// What to do.
        advice: &'static str,
    },
    /// A crate feature that is needed and was not built in.
    #[error("{what} needs the feature `{feature}` of thalweg-data")]
    Feature {
        /// What was asked for.
        what: String,
        /// The feature.
        feature: &'static str,
    },
}

impl DataError {
    pub(crate) fn io(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| DataError::Io { action, path: path.to_owned(), source }
    }
}

/// A record that cannot be understood: where it stands and why.
#[derive(Debug, Clone, PartialEq, Error)]
#[error("{}{place}: {reason}", path.display())]
pub struct BadRecord {
    /// The file.
    pub path: PathBuf,
    /// Where in it.
    pub place: Place,
    /// Why.
    pub reason: Reason,
}

/// Where in a file a record stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// A line of text, from 1.
    Line(u64),
    /// A byte, from 0.
    Byte(u64),
    /// A row of a table, from 1.
    Row(u64),
    /// The file is one record.
    Whole,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::Line(n) => write!(f, ":{n}"),
            Place::Byte(n) => write!(f, " at byte {n}"),
            Place::Row(n) => write!(f, " row {n}"),
            Place::Whole => Ok(()),
        }
    }
}

/// Why a record cannot be understood.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum Reason {
    /// Text that is no text.
    #[error("not utf-8 at byte {at} of the line")]
    Utf8 {
        /// Offset in the line.
        at: usize,
    },
    /// A line longer than any honest one.
    #[error("longer than {limit} bytes")]
    TooLong {
        /// The limit.
        limit: usize,
    },
    /// The wrong number of fields.
    #[error("{got} fields instead of {want}")]
    Fields {
        /// As many as there should be.
        want: usize,
        /// As many as there are.
        got: usize,
    },
    /// A field that is not what it should be.
    #[error("{field} {} is not {want}", Quoted(text))]
    Field {
        /// Which field.
        field: String,
        /// Its text.
        text: String,
        /// What it should be.
        want: &'static str,
    },
    /// A field without a value where there must be one.
    #[error("{field} is missing")]
    Missing {
        /// Which field.
        field: String,
    },
    /// Numbers that must rise and do not.
    #[error("index {index} follows {previous}; indices must rise")]
    Falling {
        /// The one before.
        previous: u64,
        /// The one that is not larger.
        index: u64,
    },
    /// An index outside its range.
    #[error("{what} {index} is not in {low}..{high}")]
    Index {
        /// What the index counts.
        what: &'static str,
        /// The index.
        index: u64,
        /// The smallest allowed.
        low: u64,
        /// One past the largest allowed.
        high: u64,
    },
    /// Brackets, labels or words where they should not be.
    #[error("column {column}: expected {expected}")]
    Syntax {
        /// Column, from 1, counted in bytes.
        column: usize,
        /// What should have been there.
        expected: &'static str,
    },
    /// A quote that opens and does not close.
    #[error("a quote is not closed before the end of the file")]
    OpenQuote,
    /// A binary file that is of another kind.
    #[error("starts with bytes {found:02x?}, which is not {want}")]
    Magic {
        /// The first bytes.
        found: Vec<u8>,
        /// What was expected.
        want: &'static str,
    },
    /// A file that ends too early.
    #[error("needs {need} bytes and {have} are there")]
    Truncated {
        /// Bytes needed.
        need: u64,
        /// Bytes there are.
        have: u64,
    },
    /// Bytes after the end.
    #[error("more bytes follow the {need} of the data")]
    Trailing {
        /// Bytes that belong there.
        need: u64,
    },
    /// Sizes that no memory holds.
    #[error("sizes {sizes:?} are more than memory can hold")]
    Overflow {
        /// As claimed.
        sizes: Vec<u64>,
    },
    /// Compressed data that is damaged, or a reader that fails.
    #[error("cannot be read: {0}")]
    Unreadable(String),
    /// A picture that cannot be decoded.
    #[error("cannot be decoded: {0}")]
    Picture(String),
}

/// A field out of a file, which may hold anything and be of any length.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(60) {
            Some((end, _)) => write!(f, "{:?}...", &self.0[..end]),
            None => write!(f, "{:?}", self.0),
        }
    }
}
