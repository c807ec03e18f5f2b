//! Reading the JSON header: every entry is checked, every problem kept, nothing held that is not needed.
//!
//! The visitors accept any JSON where a value of some kind belongs and report the wrong kind as a
//! problem of that tensor, so that one bad entry does not hide the next. Lists are kept only up to the
//! most axes a shape can have.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::ops::Range;

use serde_core::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use thalweg_core::{DType, Shape};

use super::METADATA;
use crate::error::{Part, Problem};
use crate::stored::{MAX_RANK, bad_bool};

/// What the header says, or what is wrong with it.
#[derive(Default)]
pub(super) struct Scan {
    pub(super) entries: Vec<Entry>,
    pub(super) metadata: BTreeMap<String, String>,
    pub(super) problems: Vec<Problem>,
}

/// A tensor that was checked.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    /// Its bytes, counted from the start of the data.
    pub(super) range: Range<usize>,
}

/// Reads a header that describes `data`. The entries are valid when there are no problems.
pub(super) fn scan(text: &str, data: &[u8]) -> Scan {
    let mut raw = Raw::default();
    let mut json = serde_json::Deserializer::from_str(text);
    if let Err(e) = Top(&mut raw).deserialize(&mut json).and_then(|()| json.end()) {
        raw.problems.push(json_problem(&e));
        // Without the rest of the entries, every byte of theirs would look like a hole.
        return Scan { problems: raw.problems, ..Scan::default() };
    }
    let Raw { entries, metadata, mut problems } = raw;
    cover(&entries, data.len() as u64, &mut problems);
    let mut out = Vec::new();
    for e in entries {
        let checked = e.checked(data, &mut problems);
        out.extend(checked);
    }
    Scan { entries: out, metadata, problems }
}

pub(super) fn dtype_name(dtype: DType) -> &'static str {
    match dtype {
        DType::Bool => "BOOL",
        DType::U8 => "U8",
        DType::I8 => "I8",
        DType::I16 => "I16",
        DType::I32 => "I32",
        DType::U32 => "U32",
        DType::I64 => "I64",
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::F32 => "F32",
        DType::F64 => "F64",
    }
}

fn read_dtype(found: String) -> Result<DType, Problem> {
    if let Some(dtype) = DType::ALL.into_iter().find(|&d| dtype_name(d) == found) {
        return Ok(dtype);
    }
    let advice = match found.as_str() {
        "U16" => "cast to I32 before saving",
        "U64" => "cast to I64 before saving",
        "C64" => "save the real and the imaginary part as two tensors",
        f if f.starts_with("F8") || f.starts_with("F6") || f.starts_with("F4") => {
            "cast to F16 or BF16 before saving"
        }
        _ => "BOOL, U8, I8, I16, I32, U32, I64, F16, BF16, F32 and F64 are",
    };
    Err(Problem::DType { found, advice })
}

fn read_shape(dims: Numbers) -> Result<Shape, Problem> {
    if dims.count > MAX_RANK {
        return Err(Problem::Rank { rank: dims.count, limit: MAX_RANK });
    }
    let shape: Option<Shape> = dims.kept.iter().map(|&d| usize::try_from(d).ok()).collect();
    shape.filter(|s| s.checked_numel().is_ok()).ok_or(Problem::Overflow { shape: dims.kept })
}

/// Whether the ranges cover the data without overlap or hole.
fn cover(entries: &[RawEntry], have: u64, problems: &mut Vec<Problem>) {
    let mut ranges: Vec<(u64, u64, &str)> = Vec::new();
    for e in entries {
        match e.range {
            Some((start, end)) if end > have => {
                problems.push(Problem::Truncated { part: Part::Data, need: end, have }.of(&e.name));
                ranges.push((start, end, &e.name));
            }
            Some((start, end)) if start < end => ranges.push((start, end, &e.name)),
            _ => {}
        }
    }
    ranges.sort_unstable();
    // An entry whose range is unknown may be what fills a hole.
    let all_known = entries.iter().all(|e| e.range.is_some());
    let mut furthest = (0, 0, "");
    for &(start, end, name) in &ranges {
        if start < furthest.1 {
            problems.push(Problem::Overlap {
                first: furthest.2.to_owned(),
                first_range: furthest.0..furthest.1,
                second: name.to_owned(),
                second_range: start..end,
            });
        } else if start > furthest.1 && all_known {
            problems.push(Problem::Hole { range: furthest.1..start });
        }
        if end > furthest.1 {
            furthest = (start, end, name);
        }
    }
    if furthest.1 < have && all_known {
        problems.push(Problem::Hole { range: furthest.1..have });
    }
}

fn json_problem(e: &serde_json::Error) -> Problem {
    // The message ends in the position, which stands in the fields.
    let text = e.to_string();
    let reason = text.rfind(" at line ").map_or(text.as_str(), |end| &text[..end]).to_owned();
    Problem::Json { line: e.line(), column: e.column(), reason }
}

#[derive(Default)]
struct Raw {
    entries: Vec<RawEntry>,
    metadata: BTreeMap<String, String>,
    problems: Vec<Problem>,
}

/// An entry whose bad fields were reported and left out.
struct RawEntry {
    name: String,
    dtype: Option<DType>,
    shape: Option<Shape>,
    range: Option<(u64, u64)>,
}

impl RawEntry {
    /// The last checks, which need dtype, shape and range together.
    fn checked(self, data: &[u8], problems: &mut Vec<Problem>) -> Option<Entry> {
        let Self { name, dtype: Some(dtype), shape: Some(shape), range: Some((start, end)) } = self else {
            return None;
        };
        let (need, have) = ((shape.numel() * dtype.size()) as u64, end - start);
        if need != have {
            problems.push(Problem::Size { dtype, shape, need, have }.of(&name));
            return None;
        }
        // Beyond the end of the data: `cover` has reported it.
        let range = usize::try_from(start).ok()?..usize::try_from(end).ok()?;
        let bytes = data.get(range.clone())?;
        if let Some(p) = bad_bool(dtype, bytes) {
            problems.push(p.of(&name));
        }
        Some(Entry { name, dtype, shape, range })
    }
}

/// The header: an object of tensors, and perhaps metadata.
struct Top<'a>(&'a mut Raw);

impl<'de> DeserializeSeed<'de> for Top<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Top<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object of tensors")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut names = HashSet::new();
        while let Some(name) = map.next_key::<String>()? {
            if !names.insert(name.clone()) {
                self.0.problems.push(Problem::RepeatedName { name: name.clone() });
            }
            if name == METADATA {
                map.next_value_seed(Metadata(self.0))?;
            } else {
                let entry = map.next_value_seed(Fields { name, raw: &mut *self.0 })?;
                self.0.entries.push(entry);
            }
        }
        Ok(())
    }
}

/// Makes a visitor answer every kind of JSON value that it does not want with its name.
macro_rules! other_kinds {
    (|$self:ident, $kind:ident| $wrong:expr; $($name:ident)*) => {
        $(other_kinds!(@ $name, $self, $kind, $wrong);)*
    };
    (@ bool, $self:ident, $kind:ident, $wrong:expr) => {
        fn visit_bool<E>($self, _: bool) -> Result<Self::Value, E> { let $kind = "a bool"; Ok($wrong) }
    };
    (@ whole, $self:ident, $kind:ident, $wrong:expr) => {
        fn visit_u64<E>($self, _: u64) -> Result<Self::Value, E> { let $kind = "a number"; Ok($wrong) }
    };
    (@ number, $self:ident, $kind:ident, $wrong:expr) => {
        fn visit_i64<E>($self, _: i64) -> Result<Self::Value, E> { let $kind = "a negative number"; Ok($wrong) }
        fn visit_f64<E>($self, _: f64) -> Result<Self::Value, E> {
            let $kind = "a fraction or a number over 64 bits";
            Ok($wrong)
        }
    };
    (@ string, $self:ident, $kind:ident, $wrong:expr) => {
        fn visit_str<E>($self, _: &str) -> Result<Self::Value, E> { let $kind = "a string"; Ok($wrong) }
    };
    (@ null, $self:ident, $kind:ident, $wrong:expr) => {
        fn visit_unit<E>($self) -> Result<Self::Value, E> { let $kind = "null"; Ok($wrong) }
    };
    (@ list, $self:ident, $kind:ident, $wrong:expr) => {
        fn visit_seq<A: SeqAccess<'de>>($self, mut seq: A) -> Result<Self::Value, A::Error> {
            while seq.next_element::<IgnoredAny>()?.is_some() {}
            let $kind = "a list";
            Ok($wrong)
        }
    };
    (@ object, $self:ident, $kind:ident, $wrong:expr) => {
        fn visit_map<A: MapAccess<'de>>($self, mut map: A) -> Result<Self::Value, A::Error> {
            while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
            let $kind = "an object";
            Ok($wrong)
        }
    };
}

/// The fields of one tensor.
struct Fields<'a> {
    name: String,
    raw: &'a mut Raw,
}

impl Fields<'_> {
    fn wrong(self, got: &'static str) -> RawEntry {
        let want = "an object with dtype, shape and data_offsets";
        self.raw.problems.push(Problem::Kind { key: self.name.clone(), want, got });
        RawEntry { name: self.name, dtype: None, shape: None, range: None }
    }
}

impl<'de> DeserializeSeed<'de> for Fields<'_> {
    type Value = RawEntry;
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<Self::Value, D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Fields<'_> {
    type Value = RawEntry;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    other_kinds!(|self, kind| self.wrong(kind); bool whole number string null list);

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let Self { name, raw } = self;
        let mut fields: [Option<Field>; 3] = [const { None }; 3];
        const KEYS: [&str; 3] = ["dtype", "shape", "data_offsets"];
        while let Some(key) = map.next_key::<String>()? {
            match KEYS.iter().position(|k| *k == key) {
                Some(i) if fields[i].is_none() => fields[i] = Some(map.next_value()?),
                at => {
                    map.next_value::<IgnoredAny>()?;
                    let p =
                        if at.is_some() { Problem::RepeatedKey { key } } else { Problem::UnknownKey { key } };
                    raw.problems.push(p.of(&name));
                }
            }
        }
        let mut report = |p: Problem| raw.problems.push(p.of(&name));
        let [dtype, shape, range] = fields;
        let dtype = text(dtype).and_then(read_dtype).map_err(&mut report).ok();
        let shape = numbers(shape, KEYS[1]).and_then(read_shape).map_err(&mut report).ok();
        let range = numbers(range, KEYS[2]).and_then(read_range).map_err(&mut report).ok();
        Ok(RawEntry { name, dtype, shape, range })
    }
}

fn read_range(n: Numbers) -> Result<(u64, u64), Problem> {
    match n.kept[..] {
        [start, end] if start <= end => Ok((start, end)),
        [start, end] => Err(Problem::Backwards { start, end }),
        _ => Err(Problem::Kind {
            key: "data_offsets".to_owned(),
            want: "two whole numbers",
            got: "a list of another length",
        }),
    }
}

fn text(field: Option<Field>) -> Result<String, Problem> {
    match field {
        Some(Field::Text(s)) => Ok(s),
        None => Err(Problem::MissingKey { key: "dtype" }),
        Some(other) => Err(Problem::Kind { key: "dtype".to_owned(), want: "a string", got: other.kind() }),
    }
}

fn numbers(field: Option<Field>, key: &'static str) -> Result<Numbers, Problem> {
    match field {
        Some(Field::Numbers(n)) => Ok(n),
        None => Err(Problem::MissingKey { key }),
        Some(other) => {
            Err(Problem::Kind { key: key.to_owned(), want: "a list of whole numbers", got: other.kind() })
        }
    }
}

/// A tensor's field, of whatever kind it is.
enum Field {
    Text(String),
    Numbers(Numbers),
    Wrong(&'static str),
}

/// A list of whole numbers, kept up to the most axes a shape can have.
#[derive(Default)]
struct Numbers {
    kept: Vec<u64>,
    count: usize,
}

impl Field {
    fn kind(&self) -> &'static str {
        match self {
            Field::Text(_) => "a string",
            Field::Numbers(_) => "a list",
            Field::Wrong(kind) => kind,
        }
    }
}

impl<'de> Deserialize<'de> for Field {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(FieldVisitor)
    }
}

struct FieldVisitor;

impl<'de> Visitor<'de> for FieldVisitor {
    type Value = Field;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    other_kinds!(|self, kind| Field::Wrong(kind); bool whole number null object);

    fn visit_str<E>(self, v: &str) -> Result<Field, E> {
        Ok(Field::Text(v.to_owned()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Field, A::Error> {
        let mut numbers = Numbers::default();
        let mut wrong = None;
        while let Some(Whole(n)) = seq.next_element()? {
            match n {
                Ok(n) if numbers.kept.len() <= MAX_RANK => numbers.kept.push(n),
                Ok(_) => {}
                Err(kind) => wrong = wrong.or(Some(kind)),
            }
            numbers.count += 1;
        }
        Ok(wrong.map_or(Field::Numbers(numbers), Field::Wrong))
    }
}

/// A whole number, or what was found instead: the list it stands in takes the kind over.
struct Whole(Result<u64, &'static str>);

impl<'de> Deserialize<'de> for Whole {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        d.deserialize_any(WholeVisitor)
    }
}

struct WholeVisitor;

impl<'de> Visitor<'de> for WholeVisitor {
    type Value = Whole;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    other_kinds!(|self, kind| Whole(Err(kind)); bool number string null list object);

    fn visit_u64<E>(self, v: u64) -> Result<Whole, E> {
        Ok(Whole(Ok(v)))
    }
}

/// The metadata: an object of strings.
struct Metadata<'a>(&'a mut Raw);

impl Metadata<'_> {
    fn wrong(self, got: &'static str) {
        let want = "an object of strings";
        self.0.problems.push(Problem::Kind { key: METADATA.to_owned(), want, got });
    }
}

impl<'de> DeserializeSeed<'de> for Metadata<'_> {
    type Value = ();
    fn deserialize<D: Deserializer<'de>>(self, d: D) -> Result<(), D::Error> {
        d.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Metadata<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    other_kinds!(|self, kind| self.wrong(kind); bool whole number string null list);

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some((key, value)) = map.next_entry::<String, Field>()? {
            match value {
                Field::Text(_) if self.0.metadata.contains_key(&key) => {
                    self.0.problems.push(Problem::RepeatedKey { key });
                }
                Field::Text(text) => drop(self.0.metadata.insert(key, text)),
                other => {
                    let got = other.kind();
                    self.0.problems.push(Problem::Kind { key, want: "a string", got });
                }
            }
        }
        Ok(())
    }
}
