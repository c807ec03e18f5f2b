//! Reading files record by record: gzip, lines, and what becomes of broken ones.

use std::fmt;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use flate2::bufread::MultiGzDecoder;

use crate::error::{BadRecord, DataError, Place, Reason};

/// What to do with a broken record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OnError {
    /// Reading ends with an error that names it.
    #[default]
    Stop,
    /// It is left out and counted.
    Skip,
}

/// What a reader found.
#[derive(Debug, Clone)]
pub struct Read<T> {
    /// The good records.
    pub data: T,
    /// The others.
    pub skipped: Skipped,
}

/// The records that were left out.
///
/// ```
/// use thalweg_data::{OnError, libsvm};
/// let read = libsvm::parse("a.svm", &b"1 1:0.5\noops\n"[..], &libsvm::Options { on_error: OnError::Skip, ..Default::default() })?;
/// assert_eq!(read.skipped.to_string(), "1 record skipped: a.svm:2: label \"oops\" is not a number");
/// # Ok::<(), thalweg_data::DataError>(())
/// ```
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Skipped {
    /// How many.
    pub count: u64,
    /// The first of them, for the message.
    pub first: Vec<BadRecord>,
}

/// Broken records that are kept for the message.
const KEPT: usize = 20;

impl Skipped {
    /// Decides about one broken record.
    pub(crate) fn decide(&mut self, on_error: OnError, bad: BadRecord) -> Result<(), DataError> {
        match on_error {
            OnError::Stop => Err(bad.into()),
            OnError::Skip => {
                self.count += 1;
                if self.first.len() < KEPT {
                    self.first.push(bad);
                }
                Ok(())
            }
        }
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.count, &self.first[..]) {
            (0, _) => write!(f, "no record skipped"),
            (1, [only]) => write!(f, "1 record skipped: {only}"),
            (n, first) => {
                write!(f, "{n} records skipped:")?;
                first.iter().try_for_each(|bad| write!(f, "\n  {bad}"))?;
                match n - first.len() as u64 {
                    0 => Ok(()),
                    more => write!(f, "\n  and {more} more"),
                }
            }
        }
    }
}

/// The bytes of a file, unpacked when it is gzipped.
pub(crate) fn open(path: &Path) -> Result<Box<dyn BufRead>, DataError> {
    let file = File::open(path).map_err(DataError::io("open", path))?;
    unpacked(BufReader::with_capacity(1 << 16, file)).map_err(DataError::io("read", path))
}

/// The same for bytes that are already there.
pub(crate) fn unpacked<'a>(mut bytes: impl BufRead + 'a) -> io::Result<Box<dyn BufRead + 'a>> {
    let packed = bytes.fill_buf()?.starts_with(&[0x1f, 0x8b]);
    Ok(if packed {
        Box::new(BufReader::with_capacity(1 << 16, MultiGzDecoder::new(bytes)))
    } else {
        Box::new(bytes)
    })
}

/// A longer line is refused, so that a file without line ends does not fill the memory.
const LINE_LIMIT: usize = 1 << 26;

/// The lines of a text file, with their numbers.
pub(crate) struct Lines<R> {
    path: PathBuf,
    bytes: R,
    number: u64,
    buffer: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(path: impl AsRef<Path>, bytes: R) -> Self {
        Self { path: path.as_ref().to_owned(), bytes, number: 0, buffer: Vec::new() }
    }

    /// The next line without its end; `None` after the last. A bad line can be skipped, but a file that
    /// cannot be read further is an error whatever the caller would do with broken records.
    pub(crate) fn next(&mut self) -> Result<Option<Result<&str, BadRecord>>, DataError> {
        self.buffer.clear();
        let unreadable = |number, e: io::Error| BadRecord {
            path: self.path.clone(),
            place: Place::Line(number),
            reason: Reason::Unreadable(e.to_string()),
        };
        self.number += 1;
        let mut limited = (&mut self.bytes).take(LINE_LIMIT as u64 + 1);
        let n = limited.read_until(b'\n', &mut self.buffer).map_err(|e| unreadable(self.number, e))?;
        if n == 0 {
            return Ok(None);
        }
        if n > LINE_LIMIT && self.buffer.last() != Some(&b'\n') {
            self.bytes.skip_until(b'\n').map_err(|e| unreadable(self.number, e))?;
            return Ok(Some(Err(self.bad(Reason::TooLong { limit: LINE_LIMIT }))));
        }
        while self.buffer.last().is_some_and(|b| matches!(b, b'\n' | b'\r')) {
            self.buffer.pop();
        }
        let text = str::from_utf8(&self.buffer).map_err(|e| e.valid_up_to());
        Ok(Some(text.map_err(|at| self.bad(Reason::Utf8 { at }))))
    }

    /// Says of the present line what is wrong with it.
    pub(crate) fn bad(&self, reason: Reason) -> BadRecord {
        BadRecord { path: self.path.clone(), place: Place::Line(self.number), reason }
    }

    /// Gives each line that is neither empty nor broken to `record`, which may find it broken too.
    pub(crate) fn each(
        mut self,
        on_error: OnError,
        mut record: impl FnMut(&str) -> Result<(), Reason>,
    ) -> Result<Skipped, DataError> {
        let mut skipped = Skipped::default();
        loop {
            let reason = match self.next()? {
                None => return Ok(skipped),
                Some(Ok(line)) if line.trim().is_empty() => continue,
                Some(Ok(line)) => match record(line) {
                    Ok(()) => continue,
                    Err(reason) => reason,
                },
                Some(Err(bad)) => bad.reason,
            };
            skipped.decide(on_error, self.bad(reason))?;
        }
    }
}

/// A field as a number, or what is wrong with it.
pub(crate) fn number<T: std::str::FromStr>(
    field: &'static str,
    text: &str,
    want: &'static str,
) -> Result<T, Reason> {
    text.parse().map_err(|_| Reason::Field { field: field.to_owned(), text: text.to_owned(), want })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn lines(bytes: &[u8]) -> (Vec<String>, Result<Skipped, DataError>) {
        let mut seen = Vec::new();
        let read = unpacked(bytes).unwrap();
        let skipped = Lines::new("f", read).each(OnError::Skip, |l| {
            seen.push(l.to_owned());
            Ok(())
        });
        (seen, skipped)
    }

    #[test]
    fn ends_of_lines_and_gzip_are_taken_away() {
        let plain = b"a\r\n\nb\nc";
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(plain).unwrap();
        for bytes in [plain.to_vec(), packed.finish().unwrap()] {
            assert_eq!(lines(&bytes).0, ["a", "b", "c"]);
        }
    }

    #[test]
    fn a_broken_line_is_counted_with_its_number() {
        let (seen, skipped) = lines(b"a\nb\xff\nc\n");
        assert_eq!(seen, ["a", "c"]);
        assert_eq!(skipped.unwrap().to_string(), "1 record skipped: f:2: not utf-8 at byte 1 of the line");
    }

    #[test]
    fn a_damaged_archive_is_an_error_even_when_skipping() {
        let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        packed.write_all(&b"line\n".repeat(1000)).unwrap();
        let mut packed = packed.finish().unwrap();
        packed.truncate(packed.len() / 2);
        let e = lines(&packed).1.unwrap_err();
        assert!(matches!(e, DataError::Record(BadRecord { reason: Reason::Unreadable(_), .. })), "{e}");
    }
}
