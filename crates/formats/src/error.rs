//! What can be wrong with a file, as values. A file's error carries all of it at once.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::PathBuf;

use thalweg_core::{DType, Shape};
use thiserror::Error;

/// Why a file could not be read or written.
#[derive(Debug, Error)]
pub enum FormatError {
    /// The system refused.
    #[error("{action} {}: {source}", path.display())]
    Io {
        /// What was being done.
        action: Action,
        /// The file as it was named by the caller.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A folder, pipe or device where a regular file is needed.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The file as it was named by the caller.
        path: PathBuf,
    },
    /// The bytes are no valid file of this format.
    #[error("{}", Listing { verb: "read", format, path, problems })]
    Invalid {
        /// The file, when the bytes came from one.
        path: Option<PathBuf>,
        /// The format it was read as.
        format: Format,
        /// Everything that is wrong with it; never empty.
        problems: Vec<Problem>,
    },
    /// The tensors cannot be stored in this format. Nothing was written.
    #[error("{}", Listing { verb: "write", format, path, problems })]
    Refused {
        /// The file, when one was to be written.
        path: Option<PathBuf>,
        /// The format asked for.
        format: Format,
        /// Everything that stands against it; never empty.
        problems: Vec<Problem>,
    },
}

/// A file format of this crate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Format {
    /// One NumPy array.
    Npy,
    /// A zip archive of NumPy arrays.
    Npz,
    /// Named tensors behind a JSON header.
    Safetensors,
}

/// What was asked of the system when it refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// Opening a file for reading.
    Open,
    /// Mapping a file into memory.
    Map,
    /// Creating the new file.
    Create,
    /// Writing the new file or forcing it to disk.
    Write,
    /// Putting the new file in the old one's place.
    Rename,
}

/// The part of a file that ends too early.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The fixed bytes at the start: magic, version, header length.
    Preamble,
    /// The header.
    Header,
    /// The elements.
    Data,
}

/// One thing that is wrong with a file, or with tensors that were to become one.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Problem {
    /// Something about one named tensor.
    #[error("tensor {}: {problem}", Quoted(name))]
    Tensor {
        /// The tensor.
        name: String,
        /// What is wrong with it.
        problem: Box<Problem>,
    },
    /// The file does not begin as this format does.
    #[error("starts with bytes {found:02x?}, so it is some other kind of file")]
    Magic {
        /// The first bytes.
        found: Vec<u8>,
    },
    /// A version of the format that is not known.
    #[error("version {major}.{minor} is not known (1.0, 2.0 and 3.0 are)")]
    Version {
        /// Major version.
        major: u8,
        /// Minor version.
        minor: u8,
    },
    /// The file ends before what it announces.
    #[error("truncated: the {part} needs {need} bytes and {have} are there")]
    Truncated {
        /// What is cut off.
        part: Part,
        /// Bytes needed, counted from the start of the part.
        need: u64,
        /// Bytes present.
        have: u64,
    },
    /// A header longer than any honest one.
    #[error("header of {length} bytes is longer than the limit of {limit}")]
    HeaderTooLong {
        /// The length announced, or needed.
        length: u64,
        /// The most that is read or written.
        limit: u64,
    },
    /// A header that is no text.
    #[error("header is not utf-8 at byte {at}")]
    HeaderUtf8 {
        /// Offset in the header.
        at: usize,
    },
    /// An npy header that is not the dict NumPy writes.
    #[error("header at byte {at}: expected {expected}")]
    HeaderSyntax {
        /// Offset in the header.
        at: usize,
        /// What should have been there.
        expected: &'static str,
    },
    /// A safetensors header that is not the JSON it should be.
    #[error("header at line {line}, column {column}: {reason}")]
    Json {
        /// Line, from 1.
        line: usize,
        /// Column, from 1; 0 when the line had not begun.
        column: usize,
        /// The JSON parser's reason.
        reason: String,
    },
    /// A key that must be there is not.
    #[error("key '{key}' is missing")]
    MissingKey {
        /// The key.
        key: &'static str,
    },
    /// A key that the format does not have.
    #[error("key {} is not known", Quoted(key))]
    UnknownKey {
        /// The key.
        key: String,
    },
    /// A key that stands twice in one object.
    #[error("key {} is given twice", Quoted(key))]
    RepeatedKey {
        /// The key.
        key: String,
    },
    /// A value of the wrong kind.
    #[error("{} must be {want}, not {got}", Quoted(key))]
    Kind {
        /// The key.
        key: String,
        /// The kind needed.
        want: &'static str,
        /// The kind found.
        got: &'static str,
    },
    /// A dtype that has no counterpart on the other side.
    #[error("dtype {} is not supported ({advice})", Quoted(found))]
    DType {
        /// The dtype as the file, or Thalweg, writes it.
        found: String,
        /// What to do instead.
        advice: &'static str,
    },
    /// More axes than arrays have.
    #[error("{rank} axes are more than the limit of {limit}")]
    Rank {
        /// Axes found.
        rank: usize,
        /// Most axes allowed.
        limit: usize,
    },
    /// A shape whose elements no address space holds.
    #[error("shape {shape:?} has more elements than memory can hold")]
    Overflow {
        /// The sizes as claimed.
        shape: Vec<u64>,
    },
    /// The bytes set aside for a tensor do not fit its shape.
    #[error("{dtype} of shape {shape} takes {need} bytes, not {have}")]
    Size {
        /// The dtype.
        dtype: DType,
        /// The shape.
        shape: Shape,
        /// Bytes that dtype and shape need.
        need: u64,
        /// Bytes given.
        have: u64,
    },
    /// A range that ends before it starts.
    #[error("offsets [{start}, {end}] run backwards")]
    Backwards {
        /// Where it starts.
        start: u64,
        /// Where it ends.
        end: u64,
    },
    /// Two tensors or archive members that share bytes.
    #[error(
        "{} at bytes {first_range:?} and {} at bytes {second_range:?} overlap",
        Quoted(first),
        Quoted(second)
    )]
    Overlap {
        /// The one that starts first.
        first: String,
        /// Its bytes.
        first_range: Range<u64>,
        /// The one that starts inside it.
        second: String,
        /// Its bytes.
        second_range: Range<u64>,
    },
    /// Bytes between tensors that belong to none.
    #[error("data bytes {range:?} belong to no tensor")]
    Hole {
        /// The bytes, counted from the end of the header.
        range: Range<u64>,
    },
    /// Bytes after the end.
    #[error("{count} bytes follow the end of the data")]
    Trailing {
        /// How many.
        count: u64,
    },
    /// A `bool` that is neither 0 nor 1.
    #[error("element {index} is {value}, which is no bool (0 or 1)")]
    BadBool {
        /// Position of the element.
        index: usize,
        /// The byte there.
        value: u8,
    },
    /// A name that stands twice.
    #[error("name {} is given twice", Quoted(name))]
    RepeatedName {
        /// The name.
        name: String,
    },
    /// A name that the format cannot store.
    #[error("name {} cannot be stored ({why})", Quoted(name))]
    BadName {
        /// The name, made readable.
        name: String,
        /// What stands against it.
        why: &'static str,
    },
    /// An archive whose directory cannot be read.
    #[error("broken zip archive: {reason}")]
    Archive {
        /// The zip reader's reason.
        reason: String,
    },
    /// An archive whose directory has lost members or gained some.
    #[error("archive claims {claimed} members and lists {found}")]
    MemberCount {
        /// As the end of the archive says.
        claimed: u64,
        /// As listed.
        found: u64,
    },
    /// An archive member that is no array.
    #[error("archive member is not an array (its name does not end in .npy)")]
    NotAnArray,
    /// An archive member behind a password.
    #[error("archive member is encrypted")]
    Encrypted,
    /// An archive member compressed in a way NumPy never does.
    #[error("zip compression method {method} is not supported (0, stored, and 8, deflated, are)")]
    Compression {
        /// The method's number.
        method: u16,
    },
    /// Compressed bytes that do not decompress.
    #[error("deflated data is broken after {after} bytes: {reason}")]
    Inflate {
        /// Bytes that came out before.
        after: u64,
        /// The decompressor's reason.
        reason: String,
    },
    /// The archive's size for a member is not the size it has.
    #[error("archive claims {claimed} bytes and holds {found}")]
    Claim {
        /// As the directory says.
        claimed: u64,
        /// As found, as far as was looked.
        found: u64,
    },
    /// A claim that no compression could keep.
    #[error("archive claims {claimed} bytes inside {compressed}, more than deflate can pack")]
    Ratio {
        /// Size after decompression, as claimed.
        claimed: u64,
        /// Size before.
        compressed: u64,
    },
    /// More than the caller allows.
    #[error("archive claims {claimed} bytes in all, over the limit of {limit} (raise `Limits::total`)")]
    OverLimit {
        /// Size of all members, as claimed.
        claimed: u64,
        /// The limit.
        limit: u64,
    },
    /// Contents that do not match their checksum.
    #[error("checksum is {got:08x}, not {want:08x}: the contents are damaged")]
    Checksum {
        /// As the archive says.
        want: u32,
        /// As computed.
        got: u32,
    },
}

impl Problem {
    /// This problem, said of a tensor.
    pub(crate) fn of(self, name: &str) -> Self {
        Problem::Tensor { name: name.to_owned(), problem: Box::new(self) }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Format::Npy => "npy",
            Format::Npz => "npz",
            Format::Safetensors => "safetensors",
        })
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Action::Open => "open",
            Action::Map => "map",
            Action::Create => "create",
            Action::Write => "write",
            Action::Rename => "rename to",
        })
    }
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Part::Preamble => "start of the file",
            Part::Header => "header",
            Part::Data => "data",
        })
    }
}

/// The message for a list of problems: one line for one, a line each for several.
struct Listing<'a> {
    verb: &'static str,
    format: &'a Format,
    path: &'a Option<PathBuf>,
    problems: &'a [Problem],
}

/// Lines of a message; the error value still holds every problem.
const SHOWN: usize = 40;

impl fmt::Display for Listing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.format)?;
        if let Some(path) = self.path {
            write!(f, " {}", path.display())?;
        }
        if let [only] = self.problems {
            return write!(f, ": {only}");
        }
        write!(f, ": {} problems", self.problems.len())?;
        for p in self.problems.iter().take(SHOWN) {
            write!(f, "\n  {p}")?;
        }
        match self.problems.len().saturating_sub(SHOWN) {
            0 => Ok(()),
            n => write!(f, "\n  and {n} more"),
        }
    }
}

/// A name out of a file, which may hold anything and be of any length.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.char_indices().nth(80) {
            Some((end, _)) => write!(f, "{:?}...", &self.0[..end]),
            None => write!(f, "{:?}", self.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_name_the_file_and_every_problem() {
        let bad = Problem::BadBool { index: 3, value: 9 }.of("mask");
        let err = |problems| FormatError::Invalid {
            path: Some(PathBuf::from("m.safetensors")),
            format: Format::Safetensors,
            problems,
        };
        assert_eq!(
            err(vec![bad.clone()]).to_string(),
            "read safetensors m.safetensors: tensor \"mask\": element 3 is 9, which is no bool (0 or 1)"
        );
        assert_eq!(
            err(vec![bad, Problem::Hole { range: 8..16 }]).to_string(),
            "read safetensors m.safetensors: 2 problems\n  tensor \"mask\": element 3 is 9, which is no bool \
             (0 or 1)\n  data bytes 8..16 belong to no tensor"
        );
    }

    #[test]
    fn messages_stay_short_and_printable_whatever_the_file_says() {
        let name = "\u{1b}[2J".repeat(1000);
        let problems = vec![Problem::RepeatedName { name }; 1000];
        let text = FormatError::Invalid { path: None, format: Format::Npz, problems }.to_string();
        assert!(text.len() < 20_000 && !text.contains('\u{1b}') && text.ends_with("and 960 more"));
    }
}
