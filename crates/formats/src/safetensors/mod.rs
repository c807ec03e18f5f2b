//! Named tensors behind a JSON header, the format of <https://github.com/huggingface/safetensors>.
//!
//! A file is a length, a header of that length and the tensors' bytes, little-endian, without gaps.
//! Opening one maps it and lends the tensors in place. Refuses overlaps, gaps, names given twice, keys
//! it does not know, and the dtypes that Thalweg does not have.

mod header;

use std::collections::{BTreeMap, HashSet};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::ops::Range;
use std::path::Path;

use thalweg_core::{Buffer, DType};

use crate::error::{Format, FormatError, Part, Problem};
use crate::map::Mapped;
use crate::replace::replace;
use crate::stored::{Dense, Stored};

/// The longest header read or written, as in the reference implementation.
const HEADER_LIMIT: u64 = 100_000_000;

/// Elements start at a multiple of this, so that mapped tensors suit SIMD loads.
const ALIGN: usize = 64;

/// The key that holds text about the file instead of a tensor.
const METADATA: &str = "__metadata__";

/// What a file holds.
#[derive(Debug, Clone)]
pub struct Contents {
    /// The tensors by name.
    pub tensors: BTreeMap<String, Stored>,
    /// Free text about the file.
    pub metadata: BTreeMap<String, String>,
}

/// Maps a file and lends its tensors without a copy; those that are misaligned in it are copied. The
/// file must not change while any of the buffers lives, see the [crate documentation](crate#mapped-files).
///
/// ```
/// use std::collections::BTreeMap;
/// use thalweg_core::{Buffer, Shape};
/// use thalweg_formats::{Stored, safetensors};
///
/// let path = std::env::temp_dir().join(format!("thalweg-doc-{}.safetensors", std::process::id()));
/// let w = Stored { buffer: Buffer::from_slice(&[1f32, 2.0]), shape: Shape::from([2]) };
/// let about = BTreeMap::from([("step".to_owned(), "100".to_owned())]);
/// safetensors::write(&path, [("w", &w)], &about)?;
///
/// let file = safetensors::open(&path)?;
/// assert_eq!(file.tensors["w"].buffer.as_slice::<f32>(), [1.0, 2.0]);
/// assert_eq!(file.metadata["step"], "100");
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), thalweg_formats::FormatError>(())
/// ```
pub fn open(path: impl AsRef<Path>) -> Result<Contents, FormatError> {
    let path = path.as_ref();
    let file = Mapped::open(path)?;
    let bytes = file.as_ref();
    let take = |range: Range<usize>, dtype| {
        Buffer::lend(file.clone(), range.clone(), dtype).unwrap_or_else(|| copied(&bytes[range], dtype))
    };
    load(bytes, take).map_err(|problems| FormatError::Invalid {
        path: Some(path.to_owned()),
        format: Format::Safetensors,
        problems,
    })
}

/// Reads the tensors from the bytes of a file, copying them.
///
/// ```
/// use thalweg_formats::safetensors;
///
/// // Two bytes are set aside for four, and two more belong to nobody.
/// let header = br#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,2]}}"#;
/// let file = [&(header.len() as u64).to_le_bytes()[..], header, &[0; 4]].concat();
/// assert_eq!(
///     safetensors::parse(&file).unwrap_err().to_string(),
///     "read safetensors: 2 problems\n  data bytes 2..4 belong to no tensor\n  \
///      tensor \"a\": f32 of shape [1] takes 4 bytes, not 2"
/// );
/// ```
pub fn parse(bytes: &[u8]) -> Result<Contents, FormatError> {
    load(bytes, |range, dtype| copied(&bytes[range], dtype)).map_err(|problems| FormatError::Invalid {
        path: None,
        format: Format::Safetensors,
        problems,
    })
}

/// Writes a file, replacing it in one step or leaving it as it was. The same tensors give the same bytes
/// in whatever order they come: widest elements first, so that each is aligned, then by name.
pub fn write<'a, T: Into<Dense<'a>>>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (&'a str, T)>,
    metadata: &BTreeMap<String, String>,
) -> Result<(), FormatError> {
    let path = path.as_ref();
    let plan = arrange(tensors, metadata).map_err(|problems| FormatError::Refused {
        path: Some(path.to_owned()),
        format: Format::Safetensors,
        problems,
    })?;
    replace(path, |w| emit(&plan, w))
}

/// The bytes that [`write`](fn@write) would put into a file.
pub fn encode<'a, T: Into<Dense<'a>>>(
    tensors: impl IntoIterator<Item = (&'a str, T)>,
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, FormatError> {
    let plan = arrange(tensors, metadata).map_err(|problems| FormatError::Refused {
        path: None,
        format: Format::Safetensors,
        problems,
    })?;
    let mut out = Vec::new();
    emit(&plan, &mut out).expect("a vector takes all bytes");
    Ok(out)
}

fn copied(bytes: &[u8], dtype: DType) -> Buffer {
    Buffer::from_le_bytes(dtype, bytes).expect("length and bools were checked")
}

/// Checks everything, then takes each tensor's bytes.
fn load(bytes: &[u8], mut take: impl FnMut(Range<usize>, DType) -> Buffer) -> Result<Contents, Vec<Problem>> {
    let (text, start) = split(bytes).map_err(|p| vec![p])?;
    let header::Scan { entries, metadata, problems } = header::scan(text, &bytes[start..]);
    if !problems.is_empty() {
        return Err(problems);
    }
    let tensors = entries
        .into_iter()
        .map(|e| {
            let buffer = take(start + e.range.start..start + e.range.end, e.dtype);
            (e.name, Stored { buffer, shape: e.shape })
        })
        .collect();
    Ok(Contents { tensors, metadata })
}

/// The header's text and the offset of the data.
fn split(bytes: &[u8]) -> Result<(&str, usize), Problem> {
    let have = bytes.len() as u64;
    let Some((length, rest)) = bytes.split_first_chunk() else {
        return Err(Problem::Truncated { part: Part::Preamble, need: 8, have });
    };
    let length = u64::from_le_bytes(*length);
    if length > HEADER_LIMIT {
        return Err(Problem::HeaderTooLong { length, limit: HEADER_LIMIT });
    }
    let Some(header) = rest.get(..length as usize) else {
        return Err(Problem::Truncated { part: Part::Header, need: length, have: have - 8 });
    };
    let text = str::from_utf8(header).map_err(|e| Problem::HeaderUtf8 { at: e.valid_up_to() })?;
    Ok((text, 8 + header.len()))
}

/// A file to be: the header, padded, and the tensors in the order of the file.
struct Plan<'a> {
    header: String,
    tensors: Vec<(&'a str, Dense<'a>)>,
}

fn arrange<'a, T: Into<Dense<'a>>>(
    tensors: impl IntoIterator<Item = (&'a str, T)>,
    metadata: &BTreeMap<String, String>,
) -> Result<Plan<'a>, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut names = HashSet::new();
    let mut tensors: Vec<(&str, Dense)> = tensors.into_iter().map(|(n, t)| (n, t.into())).collect();
    for (name, tensor) in &tensors {
        if *name == METADATA {
            let why = "the format keeps it for its metadata";
            problems.push(Problem::BadName { name: METADATA.to_owned(), why });
        }
        if !names.insert(*name) {
            problems.push(Problem::RepeatedName { name: (*name).to_owned() });
        }
        problems.extend(tensor.problems().into_iter().map(|p| p.of(name)));
    }
    tensors.sort_by_key(|(name, t)| (std::cmp::Reverse(t.dtype.size()), *name));
    let header = header_text(&tensors, metadata);
    if header.len() as u64 > HEADER_LIMIT {
        problems.push(Problem::HeaderTooLong { length: header.len() as u64, limit: HEADER_LIMIT });
    }
    if problems.is_empty() { Ok(Plan { header, tensors }) } else { Err(problems) }
}

fn header_text(tensors: &[(&str, Dense<'_>)], metadata: &BTreeMap<String, String>) -> String {
    let mut text = String::from("{");
    let fits = "a string takes all text";
    if !metadata.is_empty() {
        let json = serde_json::to_string(metadata).expect("a map of strings is always JSON");
        write!(text, "\"{METADATA}\":{json}").expect(fits);
    }
    let mut offset = 0;
    for (name, t) in tensors {
        let comma = if text.len() > 1 { "," } else { "" };
        let name = serde_json::to_string(name).expect("a string is always JSON");
        let (dtype, shape) = (header::dtype_name(t.dtype), t.shape.iter().map(usize::to_string));
        let shape = shape.collect::<Vec<_>>().join(",");
        let end = offset + t.bytes.len();
        write!(
            text,
            "{comma}{name}:{{\"dtype\":\"{dtype}\",\"shape\":[{shape}],\"data_offsets\":[{offset},{end}]}}"
        )
        .expect(fits);
        offset = end;
    }
    text.push('}');
    let padding = (text.len() + 8).next_multiple_of(ALIGN) - text.len() - 8;
    text.extend(std::iter::repeat_n(' ', padding));
    text
}

fn emit(plan: &Plan<'_>, w: &mut dyn Write) -> io::Result<()> {
    w.write_all(&(plan.header.len() as u64).to_le_bytes())?;
    w.write_all(plan.header.as_bytes())?;
    plan.tensors.iter().try_for_each(|(_, t)| t.write_le(w))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;
    use std::time::{Duration, Instant};

    use thalweg_core::Shape;

    use super::*;
    use crate::samples::{assert_same, damage, problems, tensors};

    fn file(header: &str, data: &[u8]) -> Vec<u8> {
        [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), data].concat()
    }

    fn temporary(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("thalweg-{}-{name}.safetensors", std::process::id()))
    }

    fn none() -> BTreeMap<String, String> {
        BTreeMap::new()
    }

    fn kind(key: &str, want: &'static str, got: &'static str) -> Problem {
        Problem::Kind { key: key.to_owned(), want, got }
    }

    #[test]
    fn files_of_the_reference_are_read() {
        // safetensors.numpy.save({'b': np.array([1.5], dtype='f4'), 'a': np.arange(2, dtype='i8')},
        //                        metadata={'k': 'v'}), safetensors 0.8.0
        let header = r#"{"__metadata__":{"k":"v"},"a":{"dtype":"I64","shape":[2],"data_offsets":[0,16]},"b":{"dtype":"F32","shape":[1],"data_offsets":[16,20]}} "#;
        assert_eq!(header.len(), 0x88);
        let contents = parse(&file(header, b"\0\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\0\0\xc0?")).unwrap();
        assert_eq!(contents.tensors["a"].buffer.as_slice::<i64>(), [0, 1]);
        assert_eq!(contents.tensors["b"].buffer.as_slice::<f32>(), [1.5]);
        assert_eq!(contents.metadata, BTreeMap::from([("k".to_owned(), "v".to_owned())]));
        assert!(parse(&file("{}", b"")).unwrap().tensors.is_empty());
    }

    #[test]
    fn every_dtype_and_shape_comes_back_lent_from_the_file() {
        let all: Vec<(String, Stored)> =
            tensors().into_iter().enumerate().map(|(i, t)| (format!("block.{i}/\"ü\"\n"), t)).collect();
        let about = BTreeMap::from([("step \"1\"".to_owned(), "\u{1}\\".to_owned())]);
        let path = temporary("round");
        write(&path, all.iter().map(|(n, t)| (n.as_str(), t)), &about).unwrap();
        let bytes = fs::read(&path).unwrap();
        for contents in [open(&path).unwrap(), parse(&bytes).unwrap()] {
            assert_eq!(contents.metadata, about);
            assert_eq!(contents.tensors.len(), all.len());
            all.iter().for_each(|(n, t)| assert_same(&contents.tensors[n], t));
        }
        for t in open(&path).unwrap().tensors.values() {
            assert!(!t.buffer.is_unique(), "lent, not copied");
        }
        // The order in which tensors come does not matter.
        let turned = encode(all.iter().rev().map(|(n, t)| (n.as_str(), t)), &about).unwrap();
        assert_eq!(turned, bytes);
        let header = u64::from_le_bytes(bytes[..8].try_into().unwrap());
        assert_eq!((header + 8) % 64, 0);
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn misaligned_tensors_are_copied() {
        let path = temporary("misaligned");
        fs::write(
            &path,
            file(r#"{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#, &1.5f32.to_le_bytes()),
        )
        .unwrap();
        let a = open(&path).unwrap().tensors.remove("a").unwrap();
        assert_eq!(a.buffer.as_slice::<f32>(), [1.5]);
        assert!(a.buffer.is_unique());
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn an_opened_file_can_be_written_over() {
        let path = temporary("over");
        let t = |v: f32| Stored { buffer: Buffer::from_slice(&[v; 5000]), shape: Shape::from([5000]) };
        write(&path, [("w", &t(1.0))], &none()).unwrap();
        let old = open(&path).unwrap();
        write(&path, [("w", &t(2.0))], &none()).unwrap();
        assert_same(&old.tensors["w"], &t(1.0));
        assert_same(&open(&path).unwrap().tensors["w"], &t(2.0));
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_changed_or_cut_file_never_panics() {
        let b = Stored { buffer: Buffer::from_slice(&[true, false]), shape: Shape::from([1, 2]) };
        let h = Stored { buffer: Buffer::zeros(DType::BF16, 1), shape: Shape::scalar() };
        let about = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
        damage(&encode([("b", &b), ("h", &h)], &about).unwrap(), parse);
    }

    #[test]
    fn a_header_that_claims_ten_gigabytes_fails_at_once() {
        let start = Instant::now();
        let entry = r#"{"a":{"dtype":"F32","shape":[2500000000],"data_offsets":[0,10000000000]}}"#;
        let cut = Problem::Truncated { part: Part::Data, need: 10_000_000_000, have: 4 };
        assert_eq!(problems(parse(&file(entry, &[0; 4]))), [cut.of("a")]);
        for (claim, want) in [
            (10_000_000_000, Problem::HeaderTooLong { length: 10_000_000_000, limit: HEADER_LIMIT }),
            (u64::MAX, Problem::HeaderTooLong { length: u64::MAX, limit: HEADER_LIMIT }),
            (99_000_000, Problem::Truncated { part: Part::Header, need: 99_000_000, have: 2 }),
        ] {
            assert_eq!(problems(parse(&[&claim.to_le_bytes()[..], b"{}"].concat())), [want]);
        }
        assert!(start.elapsed() < Duration::from_millis(200));
    }

    #[test]
    fn all_faults_of_a_file_are_listed_at_once() {
        let header = r#"{
            "a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},
            "b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},
            "c":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[10,12]},
            "d":{"dtype":"U64","shape":[1],"data_offsets":[12,20]},
            "e":{"dtype":"I16","shape":[3],"data_offsets":[20,24]},
            "e":{"dtype":"I16","shape":[],"data_offsets":[24,26]},
            "f":{"dtype":"BOOL","shape":[2],"data_offsets":[26,28]},
            "g":{"dtype":"U8","shape":[4294967296,4294967296,4294967296],"data_offsets":[28,29]},
            "h":{"dtype":"U8","shape":[9],"data_offsets":[29,38]}}"#;
        let mut data = [0; 30];
        data[27] = 3;
        let fp8 = Problem::DType { found: "F8_E4M3".to_owned(), advice: "cast to F16 or BF16 before saving" };
        let u64 = Problem::DType { found: "U64".to_owned(), advice: "cast to I64 before saving" };
        assert_eq!(
            problems(parse(&file(header, &data))),
            [
                fp8.of("c"),
                u64.of("d"),
                Problem::RepeatedName { name: "e".to_owned() },
                Problem::Overflow { shape: vec![1 << 32; 3] }.of("g"),
                Problem::Truncated { part: Part::Data, need: 38, have: 30 }.of("h"),
                Problem::Overlap {
                    first: "a".to_owned(),
                    first_range: 0..8,
                    second: "b".to_owned(),
                    second_range: 4..8
                },
                Problem::Hole { range: 8..10 },
                Problem::Size { dtype: DType::I16, shape: Shape::from([3]), need: 6, have: 4 }.of("e"),
                Problem::BadBool { index: 1, value: 3 }.of("f"),
            ]
        );
    }

    #[test]
    fn each_fault_of_an_entry_has_its_problem() {
        let faults = |entry: &str| problems(parse(&file(&format!("{{\"a\":{entry}}}"), &[])));
        let whole = "a list of whole numbers";
        let want = "an object with dtype, shape and data_offsets";
        for (entry, got) in [
            ("1", "a number"),
            ("-1", "a negative number"),
            ("null", "null"),
            ("[{}]", "a list"),
            ("true", "a bool"),
        ] {
            assert_eq!(faults(entry), [kind("a", want, got)]);
        }
        assert_eq!(faults("{}").len(), 3);
        assert_eq!(
            faults(r#"{"dtype":[],"shape":{"x":[[]]},"data_offsets":"0"}"#),
            [
                kind("dtype", "a string", "a list").of("a"),
                kind("shape", whole, "an object").of("a"),
                kind("data_offsets", whole, "a string").of("a")
            ]
        );
        assert_eq!(
            faults(r#"{"dtype":"U8","shape":[-1],"data_offsets":[1.5,1],"dtype":"U8","order":"F"}"#),
            [
                Problem::RepeatedKey { key: "dtype".to_owned() }.of("a"),
                Problem::UnknownKey { key: "order".to_owned() }.of("a"),
                kind("shape", whole, "a negative number").of("a"),
                kind("data_offsets", whole, "a fraction or a number over 64 bits").of("a"),
            ]
        );
        let backwards = Problem::Backwards { start: 4, end: 0 };
        assert_eq!(faults(r#"{"dtype":"U8","shape":[0],"data_offsets":[4,0]}"#), [backwards.of("a")]);
        let three = kind("data_offsets", "two whole numbers", "a list of another length");
        assert_eq!(faults(r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0,0]}"#), [three.of("a")]);
        let axes = format!(r#"{{"dtype":"U8","shape":[{}0],"data_offsets":[0,0]}}"#, "1,".repeat(1000));
        assert_eq!(faults(&axes), [Problem::Rank { rank: 1001, limit: 64 }.of("a")]);
        // Empty, but its strides would overflow.
        let empty = r#"{"dtype":"U8","shape":[0,18446744073709551615,2],"data_offsets":[0,0]}"#;
        assert_eq!(faults(empty), [Problem::Overflow { shape: vec![0, u64::MAX, 2] }.of("a")]);
        // Beyond the data, although it is empty.
        let beyond = r#"{"dtype":"U8","shape":[0],"data_offsets":[5,5]}"#;
        assert_eq!(faults(beyond)[0], Problem::Truncated { part: Part::Data, need: 5, have: 0 }.of("a"));
    }

    #[test]
    fn each_fault_of_the_header_has_its_problem() {
        let faults = |header: &str, data: &[u8]| problems(parse(&file(header, data)));
        assert_eq!(problems(parse(b"123")), [Problem::Truncated { part: Part::Preamble, need: 8, have: 3 }]);
        assert_eq!(problems(parse(b"\x02\0\0\0\0\0\0\0{\xff")), [Problem::HeaderUtf8 { at: 1 }]);
        assert_eq!(faults("{}", &[0; 3]), [Problem::Hole { range: 0..3 }]);
        let reason = "EOF while parsing an object".to_owned();
        assert_eq!(faults("{", &[]), [Problem::Json { line: 1, column: 1, reason }]);
        for header in ["", "[]", "{} {}", "{\"a\":", "{'a':1}", "nul"] {
            assert!(matches!(faults(header, &[])[..], [Problem::Json { .. }]), "{header}");
        }
        // What was found before the header breaks off is told too.
        assert_eq!(faults(r#"{"a":1,"b":2,"#, &[]).len(), 3);
        let deep = format!("{{\"a\":{}", "[".repeat(100_000));
        assert!(matches!(faults(&deep, &[])[..], [Problem::Json { .. }]));
        assert_eq!(
            faults(r#"{"__metadata__":7}"#, &[]),
            [kind(METADATA, "an object of strings", "a number")]
        );
        assert_eq!(
            faults(r#"{"__metadata__":{"k":"v","k":"w","n":[1]}}"#, &[]),
            [Problem::RepeatedKey { key: "k".to_owned() }, kind("n", "a string", "a list")]
        );
    }

    #[test]
    fn tensors_that_cannot_be_stored_are_all_named_and_nothing_is_written() {
        let path = temporary("refused");
        let x = Dense { dtype: DType::U8, shape: &[2], bytes: &[1] };
        let found = problems(write(&path, [(METADATA, x), ("x", x), ("x", x)], &none()));
        assert_eq!(found.len(), 5, "{found:?}");
        assert!(!path.exists());
    }

    #[test]
    #[cfg(unix)]
    fn a_full_disk_is_an_error_that_names_it() {
        let full = Path::new("/dev/full");
        if full.exists() {
            let x = Dense { dtype: DType::U8, shape: &[1], bytes: &[1] };
            let err = write(full, [("x", x)], &none()).unwrap_err();
            assert!(
                matches!(&err, FormatError::Io { source, .. } if source.kind() == io::ErrorKind::StorageFull)
            );
            assert!(err.to_string().starts_with("write /dev/full: "), "{err}");
        }
    }
}
