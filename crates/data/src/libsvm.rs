//! Sparse rows in text, as LIBSVM and SVMlight write them: `label index:value index:value …`.

use std::io::BufRead;
use std::path::Path;

use crate::error::{DataError, Reason};
use crate::records::{self, Lines, OnError, Read, number};
use crate::sparse::Sparse;

/// How a file is to be read.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Number of features; without it, the largest index of the file. Give the number of the training set
    /// when reading a test set.
    pub n_features: Option<usize>,
    /// Whether the first feature is 0 in the file; usually it is 1.
    pub zero_based: bool,
    /// What to do with a broken record.
    pub on_error: OnError,
}

/// Features a file may have, so that one wrong digit does not ask for all memory.
const MAX_FEATURES: u64 = 1 << 31;

/// The rows of a file, which may be gzipped.
pub fn read(path: impl AsRef<Path>, options: &Options) -> Result<Read<Sparse>, DataError> {
    parse(path.as_ref(), records::open(path.as_ref())?, options)
}

/// The rows in these bytes, gzipped or not; `name` is for messages.
///
/// ```
/// use thalweg_data::libsvm;
/// let text = "-1 1:0.5 3:2 # a comment\n+1 2:1\n";
/// let rows = libsvm::parse("a.svm", text.as_bytes(), &libsvm::Options::default())?.data;
/// assert_eq!(rows.n_features(), 3);
/// assert_eq!(rows.row(0), (&[0, 2][..], &[0.5, 2.0][..]));
/// assert_eq!(rows.labels(), [-1.0, 1.0]);
/// # Ok::<(), thalweg_data::DataError>(())
/// ```
pub fn parse(
    name: impl AsRef<Path>,
    bytes: impl BufRead,
    options: &Options,
) -> Result<Read<Sparse>, DataError> {
    let path = name.as_ref();
    let bytes = records::unpacked(bytes).map_err(DataError::io("read", path))?;
    let low = u64::from(!options.zero_based);
    let high = options.n_features.map_or(MAX_FEATURES, |n| n as u64) + low;
    let mut data = Sparse::new(options.n_features.unwrap_or(0));
    let mut row = Vec::new();
    let skipped = Lines::new(path, bytes).each(options.on_error, |line| {
        let text = line.split('#').next().unwrap_or_default();
        if text.trim().is_empty() {
            return Ok(());
        }
        let label = parse_row(text, low, high, &mut row)?;
        data.push(label, &row);
        Ok(())
    })?;
    Ok(Read { data, skipped })
}

/// The label; the features go into `row`, counted from 0.
fn parse_row(text: &str, low: u64, high: u64, row: &mut Vec<(u32, f32)>) -> Result<f32, Reason> {
    row.clear();
    let mut words = text.split_ascii_whitespace();
    let label = number("label", words.next().unwrap_or_default(), "a number")?;
    let mut previous = None;
    for word in words {
        let Some((index, value)) = word.split_once(':') else {
            return Err(Reason::Field { field: "feature".into(), text: word.into(), want: "index:value" });
        };
        let index: u64 = number("index", index, "a whole number (query ids are not supported)")?;
        if !(low..high).contains(&index) {
            return Err(Reason::Index { what: "feature", index, low, high });
        }
        if let Some(previous) = previous.filter(|&p| p >= index) {
            return Err(Reason::Falling { previous, index });
        }
        previous = Some(index);
        row.push(((index - low) as u32, number("value", value, "a number")?));
    }
    Ok(label)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reason(line: &str) -> String {
        parse("f", line.as_bytes(), &Options::default()).unwrap_err().to_string()
    }

    #[test]
    fn each_kind_of_broken_row_has_its_reason() {
        assert_eq!(reason("1 1:2\n1 0:3"), "f:2: feature 0 is not in 1..2147483649");
        assert_eq!(reason("1 3:2 3:1"), "f:1: index 3 follows 3; indices must rise");
        assert_eq!(reason("1 3"), "f:1: feature \"3\" is not index:value");
        assert_eq!(reason("1 3:x"), "f:1: value \"x\" is not a number");
        assert_eq!(
            reason("1 qid:3 1:1"),
            "f:1: index \"qid\" is not a whole number (query ids are not supported)"
        );
    }

    #[test]
    fn a_broken_row_leaves_nothing_behind_when_skipped() {
        let options = Options { on_error: OnError::Skip, ..Default::default() };
        let read = parse("f", &b"1 1:1\n2 5:5 4:4\n3 2:2\n"[..], &options).unwrap();
        assert_eq!((read.data.labels(), read.data.n_features()), (&[1.0, 3.0][..], 2));
        assert_eq!(read.skipped.count, 1);
    }
}
