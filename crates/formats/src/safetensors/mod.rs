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
///     "read safetensors: 2 problems\n  tensor \"a\": f32 of shape [1] takes 4 bytes, not 2\n  \
///      data bytes 2..4 belong to no tensor"
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
    let (header, tensors) = arrange(tensors, metadata).map_err(|problems| FormatError::Refused {
        path: Some(path.to_owned()),
        format: Format::Safetensors,
        problems,
    })?;
    replace(path, |w| emit(&header, &tensors, w))
}

/// The bytes that [`write`] would put into a file.
pub fn encode<'a, T: Into<Dense<'a>>>(
    tensors: impl IntoIterator<Item = (&'a str, T)>,
    metadata: &BTreeMap<String, String>,
) -> Result<Vec<u8>, FormatError> {
    let (header, tensors) = arrange(tensors, metadata).map_err(|problems| FormatError::Refused {
        path: None,
        format: Format::Safetensors,
        problems,
    })?;
    let mut out = Vec::new();
    emit(&header, &tensors, &mut out).expect("a vector takes all bytes");
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

/// The header, padded, and the tensors in the order of the file.
fn arrange<'a, T: Into<Dense<'a>>>(
    tensors: impl IntoIterator<Item = (&'a str, T)>,
    metadata: &BTreeMap<String, String>,
) -> Result<(String, Vec<(&'a str, Dense<'a>)>), Vec<Problem>> {
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
    if problems.is_empty() { Ok((header, tensors)) } else { Err(problems) }
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

fn emit(header: &str, tensors: &[(&str, Dense<'_>)], w: &mut dyn Write) -> io::Result<()> {
    w.write_all(&(header.len() as u64).to_le_bytes())?;
    w.write_all(header.as_bytes())?;
    tensors.iter().try_for_each(|(_, t)| t.write_le(w))
}
