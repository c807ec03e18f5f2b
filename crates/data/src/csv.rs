//! Tables in text: comma-separated values with quotes, a header, types and missing values.

use std::io::{BufRead, Read as _};
use std::path::Path;

use csv::{ByteRecord, ReaderBuilder, Terminator};

use crate::error::{BadRecord, DataError, Place, Reason};
use crate::records::{self, OnError, Read, Skipped};
use crate::table::{Builder, Table};

/// What the values of a column are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Real numbers.
    Float,
    /// Whole numbers.
    Int,
    /// Anything.
    Text,
}

/// How a file is to be read.
#[derive(Debug, Clone)]
pub struct Options {
    /// What stands between fields; `,` unless said otherwise. Not NUL or DEL.
    pub delimiter: u8,
    /// Whether the first line names the columns. Without names they are called "0", "1", ….
    pub header: bool,
    /// Lines before the header that are no part of the table.
    pub skip_lines: usize,
    /// Types of columns, by name. The others get the narrowest type that all their values have.
    pub kinds: Vec<(String, Kind)>,
    /// Fields that mean "no value"; an empty field always does.
    pub missing: Vec<String>,
    /// What to do with a broken record.
    pub on_error: OnError,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            delimiter: b',',
            header: true,
            skip_lines: 0,
            kinds: Vec::new(),
            missing: ["NA", "N/A", "NaN", "nan", "null", "?"].map(str::to_owned).to_vec(),
            on_error: OnError::Stop,
        }
    }
}

/// Put behind every file: when it does not come out as a record of its own, a quote was never closed and has
/// swallowed the rest of the file.
const END: &str = "\n\0\x7f\x7f\0\x7f\0\0\x7f\0\x7f\x7f\0\n";

/// The table in a file, which may be gzipped.
pub fn read(path: impl AsRef<Path>, options: &Options) -> Result<Read<Table>, DataError> {
    parse(path.as_ref(), records::open(path.as_ref())?, options)
}

/// The table in these bytes, gzipped or not; `name` is for messages.
///
/// ```
/// use thalweg_data::csv;
/// let text = "age,city\n31,Basel\nNA,\"Chur, GR\"\n";
/// let table = csv::parse("t.csv", text.as_bytes(), &csv::Options::default())?.data;
/// assert_eq!(table.column("city")?.classes()?.1, ["Basel", "Chur, GR"]);
/// assert_eq!(table.column("age")?.missing, [1]);
///
/// let e = csv::parse("t.csv", &b"a,b\n1,2\n3\n"[..], &csv::Options::default()).unwrap_err();
/// assert_eq!(e.to_string(), "t.csv:3: 1 fields instead of 2");
/// # Ok::<(), thalweg_data::DataError>(())
/// ```
pub fn parse(
    name: impl AsRef<Path>,
    bytes: impl BufRead,
    options: &Options,
) -> Result<Read<Table>, DataError> {
    let path = name.as_ref();
    let mut bytes = records::unpacked(bytes).map_err(DataError::io("read", path))?;
    for _ in 0..options.skip_lines {
        bytes.skip_until(b'\n').map_err(DataError::io("read", path))?;
    }
    let bytes = bytes.chain(END.as_bytes());
    let mut reader = ReaderBuilder::new()
        .delimiter(options.delimiter)
        .terminator(Terminator::Any(b'\n'))
        .has_headers(false)
        .flexible(true)
        .from_reader(bytes);

    let mut skipped = Skipped::default();
    let mut table: Option<Builder> = None;
    let mut record = ByteRecord::new();
    loop {
        let more = reader.read_byte_record(&mut record);
        // Counted back from where the record ended: the reader counts empty lines before it as its own.
        let inside = record.iter().flatten().filter(|b| **b == b'\n').count() as u64;
        let line = (reader.position().line() + options.skip_lines as u64).saturating_sub(inside + 1);
        let bad = |line: u64, reason| BadRecord { path: path.to_owned(), place: Place::Line(line), reason };
        match more {
            Ok(true) => {}
            Ok(false) => break,
            Err(e) => return Err(bad(line, Reason::Unreadable(e.to_string())).into()),
        }
        // A header is not skipped: the next record would be taken for one.
        let on_error = if table.is_none() && options.header { OnError::Stop } else { options.on_error };
        if record.iter().next_back().is_some_and(|f| f.ends_with(END.as_bytes())) {
            // The mark is inside a field, and with it everything from the quote on.
            skipped.decide(on_error, bad(line + 1, Reason::OpenQuote))?;
            break;
        }
        let fields = match fields(&record) {
            Ok(fields) if fields == [END.trim()] => break,
            Ok(fields) if fields == [""] => continue,
            Ok(fields) => fields,
            Err(reason) => {
                skipped.decide(on_error, bad(line, reason))?;
                continue;
            }
        };
        match &mut table {
            None if options.header => {
                let names = fields.iter().map(|f| f.trim().to_owned()).collect();
                table = Some(Builder::new(names, options)?);
            }
            slot => {
                if slot.is_none() {
                    let names = (0..fields.len()).map(|i| i.to_string()).collect();
                    *slot = Some(Builder::new(names, options)?);
                }
                let builder = slot.as_mut().expect("made above");
                if let Err(reason) = builder.push(&fields) {
                    skipped.decide(on_error, bad(line, reason))?;
                }
            }
        }
    }
    let table = table.ok_or_else(|| DataError::Empty { path: path.to_owned(), what: "records" })?;
    Ok(Read { data: table.finish(), skipped })
}

fn fields(record: &ByteRecord) -> Result<Vec<&str>, Reason> {
    let text = |f| str::from_utf8(f).map_err(|e| Reason::Utf8 { at: e.valid_up_to() });
    let mut fields = record.iter().map(text).collect::<Result<Vec<&str>, _>>()?;
    if let Some(last) = fields.last_mut() {
        *last = last.strip_suffix('\r').unwrap_or(last);
    }
    Ok(fields)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Values;

    fn table(text: &str, options: &Options) -> Result<Read<Table>, DataError> {
        parse("t.csv", text.as_bytes(), options)
    }

    #[test]
    fn columns_get_the_narrowest_type_that_fits() {
        let t = table("a,b,c,d\n1,1.5,x,\n-2,3,4,7\n", &Options::default()).unwrap().data;
        assert_eq!(t.column("a").unwrap().values, Values::Int(vec![1, -2]));
        assert_eq!(t.column("b").unwrap().values, Values::Float(vec![1.5, 3.0]));
        assert_eq!(t.column("c").unwrap().values, Values::Text(vec!["x".into(), "4".into()]));
        let d = t.column("d").unwrap();
        assert_eq!((&d.values, &d.missing[..]), (&Values::Int(vec![0, 7]), &[0][..]));
    }

    #[test]
    fn a_wrong_value_of_a_typed_column_names_line_and_column() {
        let options = Options { kinds: vec![("n".into(), Kind::Int)], ..Options::default() };
        let e = table("n\n1\n\n2.5\n", &options).unwrap_err();
        assert_eq!(e.to_string(), "t.csv:4: column n \"2.5\" is not a whole number");
        let skip = Options { on_error: OnError::Skip, ..options };
        let read = table("n\n1\n\n2.5\n3\n", &skip).unwrap();
        assert_eq!(read.data.column("n").unwrap().values, Values::Int(vec![1, 3]));
        assert_eq!(read.skipped.count, 1);
    }

    #[test]
    fn a_type_for_a_column_that_is_not_there_is_an_error() {
        let options = Options { kinds: vec![("m".into(), Kind::Int)], ..Options::default() };
        assert_eq!(table("n\n1\n", &options).unwrap_err().to_string(), "no column \"m\"; there are n");
    }

    #[test]
    fn quotes_hold_commas_line_ends_and_quotes() {
        let t = table("a,b\n\"x,\n\"\"y\",2\n", &Options::default()).unwrap().data;
        assert_eq!(t.column("a").unwrap().values, Values::Text(vec!["x,\n\"y".into()]));
    }

    #[test]
    fn an_open_quote_is_an_error_and_not_a_long_field() {
        let e = table("a,b\r\n1,2\r\n\r\n3,\"4\r\n5,6\r\n", &Options::default()).unwrap_err();
        assert_eq!(e.to_string(), "t.csv:4: a quote is not closed before the end of the file");
    }

    #[test]
    fn lines_are_counted_through_quotes_and_skipped_lines() {
        let options = Options { skip_lines: 1, ..Options::default() };
        let e = table("about\na,b\n\"1\n2\",3\n4\n", &options).unwrap_err();
        assert_eq!(e.to_string(), "t.csv:5: 1 fields instead of 2");
    }
}
