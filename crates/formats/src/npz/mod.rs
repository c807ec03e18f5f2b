//! Several NumPy arrays in one zip archive.
//!
//! Reads stored and deflated members, zip64 included; names come without their `.npy`. An archive is
//! looked over before anything is decompressed: members may not overlap, nor claim more than deflate
//! can pack or [`Limits`] allow, and each claim must match the array's own header. Members that are
//! no arrays are refused, encrypted ones too.

mod unpack;

use std::collections::HashSet;
use std::io::{self, Write};
use std::path::Path;

use flate2::write::DeflateEncoder;
use rawzip::path::{EntryPath, ZipFilePath};
use rawzip::{CompressionMethod, ZipArchiveWriter};

use crate::error::{Format, FormatError, Problem};
use crate::map::Mapped;
use crate::npy;
use crate::replace::replace;
use crate::stored::{Dense, Stored};

/// How members are packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Compression {
    /// As they are, like `numpy.savez`.
    #[default]
    Stored,
    /// Deflated, like `numpy.savez_compressed`.
    Deflated,
}

/// How much an archive may unpack to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of all members together.
    pub total: u64,
}

impl Default for Limits {
    /// 16 GiB.
    fn default() -> Self {
        Self { total: 16 << 30 }
    }
}

/// Reads all arrays of an archive, in the order of its directory. The file must not change meanwhile,
/// see the [crate documentation](crate#mapped-files).
///
/// ```
/// use thalweg_core::{Buffer, Shape};
/// use thalweg_formats::{Stored, npz};
///
/// let path = std::env::temp_dir().join(format!("thalweg-doc-{}.npz", std::process::id()));
/// let x = Stored { buffer: Buffer::from_slice(&[0.5f32; 6]), shape: Shape::from([2, 3]) };
/// npz::write(&path, [("x", &x)], npz::Compression::Deflated)?;
/// let arrays = npz::read(&path)?;
/// assert_eq!(arrays[0].0, "x");
/// assert_eq!(arrays[0].1.shape, Shape::from([2, 3]));
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), thalweg_formats::FormatError>(())
/// ```
pub fn read(path: impl AsRef<Path>) -> Result<Vec<(String, Stored)>, FormatError> {
    read_within(path, Limits::default())
}

/// As [`read`], with the caller's limits.
pub fn read_within(path: impl AsRef<Path>, limits: Limits) -> Result<Vec<(String, Stored)>, FormatError> {
    let path = path.as_ref();
    let file = Mapped::open(path)?;
    unpack::load(file.as_ref(), limits).map_err(|problems| FormatError::Invalid {
        path: Some(path.to_owned()),
        format: Format::Npz,
        problems,
    })
}

/// Reads all arrays from the bytes of an archive.
pub fn parse(bytes: &[u8]) -> Result<Vec<(String, Stored)>, FormatError> {
    parse_within(bytes, Limits::default())
}

/// As [`parse`], with the caller's limits.
pub fn parse_within(bytes: &[u8], limits: Limits) -> Result<Vec<(String, Stored)>, FormatError> {
    unpack::load(bytes, limits).map_err(|problems| FormatError::Invalid {
        path: None,
        format: Format::Npz,
        problems,
    })
}

/// Writes an archive, replacing the file in one step or leaving it as it was. The same tensors give the
/// same bytes: members carry no time.
pub fn write<'a, T: Into<Dense<'a>>>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (&'a str, T)>,
    compression: Compression,
) -> Result<(), FormatError> {
    let path = path.as_ref();
    let tensors = writable(tensors).map_err(|problems| FormatError::Refused {
        path: Some(path.to_owned()),
        format: Format::Npz,
        problems,
    })?;
    replace(path, |w| emit(&tensors, compression, w))
}

/// The bytes that [`write`](fn@write) would put into a file.
pub fn encode<'a, T: Into<Dense<'a>>>(
    tensors: impl IntoIterator<Item = (&'a str, T)>,
    compression: Compression,
) -> Result<Vec<u8>, FormatError> {
    let tensors = writable(tensors).map_err(|problems| FormatError::Refused {
        path: None,
        format: Format::Npz,
        problems,
    })?;
    let mut out = Vec::new();
    emit(&tensors, compression, &mut out).expect("a vector takes all bytes, and the names were checked");
    Ok(out)
}

/// The tensors, or everything that keeps them from being stored.
fn writable<'a, T: Into<Dense<'a>>>(
    tensors: impl IntoIterator<Item = (&'a str, T)>,
) -> Result<Vec<(String, Dense<'a>)>, Vec<Problem>> {
    let mut problems = Vec::new();
    let mut names = HashSet::new();
    let mut out = Vec::new();
    for (name, tensor) in tensors {
        let tensor = tensor.into();
        let member = format!("{name}.npy");
        if let Some(why) = bad_name(&member) {
            problems.push(Problem::BadName { name: name.to_owned(), why });
        }
        if !names.insert(name) {
            problems.push(Problem::RepeatedName { name: name.to_owned() });
        }
        problems.extend(npy::problems(&tensor).into_iter().map(|p| p.of(name)));
        out.push((member, tensor));
    }
    if problems.is_empty() { Ok(out) } else { Err(problems) }
}

fn bad_name(member: &str) -> Option<&'static str> {
    if member.len() > usize::from(u16::MAX) {
        Some("it is longer than 65531 bytes")
    } else if member.contains('\0') {
        Some("it holds a zero byte")
    } else if !member.is_ascii() && ZipFilePath::from_str(member).as_str() != member {
        Some("the zip writer would change it: no '\\', ':', '..' or leading '/' beside other alphabets")
    } else {
        None
    }
}

fn emit(tensors: &[(String, Dense<'_>)], compression: Compression, w: &mut dyn Write) -> io::Result<()> {
    let mut archive = ZipArchiveWriter::new(w);
    for (member, tensor) in tensors {
        // A conformant path would be rewritten; only the flag for utf-8 makes it necessary.
        let path = if member.is_ascii() {
            EntryPath::verbatim(member.as_bytes())
        } else {
            EntryPath::conformant(member.as_str())
        };
        let method = match compression {
            Compression::Stored => CompressionMethod::STORE,
            Compression::Deflated => CompressionMethod::DEFLATE,
        };
        let (mut entry, config) =
            archive.new_file(path).compression_method(method).start().map_err(write_error)?;
        let descriptor = match compression {
            Compression::Stored => {
                let mut data = config.wrap(&mut entry);
                npy::emit(tensor, &mut data)?;
                data.finish().map_err(write_error)?.1
            }
            Compression::Deflated => {
                let encoder = DeflateEncoder::new(&mut entry, flate2::Compression::default());
                let mut data = config.wrap(encoder);
                npy::emit(tensor, &mut data)?;
                let (encoder, descriptor) = data.finish().map_err(write_error)?;
                encoder.finish()?;
                descriptor
            }
        };
        entry.finish(descriptor).map_err(write_error)?;
    }
    archive.finish().map_err(write_error)?;
    Ok(())
}

fn write_error(e: rawzip::Error) -> io::Error {
    match e.into_kind() {
        rawzip::ErrorKind::IO(e) => e,
        other => io::Error::other(other.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use thalweg_core::{Buffer, DType, Shape};

    use super::*;
    use crate::samples::{assert_same, problems, tensors};

    fn bytes(values: &[u8]) -> Stored {
        Stored { buffer: Buffer::from_slice(values), shape: Shape::from([values.len()]) }
    }

    #[test]
    fn every_dtype_and_shape_comes_back_both_ways() {
        let all: Vec<(String, Stored)> =
            tensors()
                .into_iter()
                .filter(|t| t.buffer.dtype() != DType::BF16)
                .enumerate()
                .map(|(i, t)| (format!("layer/{i}:0 ü"), t))
                .map(|(n, t)| {
                    if t.shape.rank() > 1 { (n.replace(" ü", ".npy"), t) } else { (n.replace(':', "."), t) }
                })
                .collect();
        for compression in [Compression::Stored, Compression::Deflated] {
            let file = encode(all.iter().map(|(n, t)| (n.as_str(), t)), compression).unwrap();
            let back = parse(&file).unwrap();
            assert_eq!(back.len(), all.len());
            for ((n, t), (m, u)) in all.iter().zip(&back) {
                assert_eq!(n, m);
                assert_same(t, u);
            }
        }
        assert!(parse(&encode([("", &bytes(&[1]))], Compression::Stored).unwrap()).unwrap()[0].0.is_empty());
        assert!(parse(&encode::<&Stored>([], Compression::Stored).unwrap()).unwrap().is_empty());
    }

    #[test]
    fn tensors_that_cannot_be_stored_are_all_named() {
        let half = Stored { buffer: Buffer::zeros(DType::BF16, 1), shape: Shape::from([1]) };
        let x = bytes(&[1]);
        let long = "n".repeat(70_000);
        let found = problems(encode(
            [("a", &half), ("x", &x), ("x", &x), ("n\0", &x), ("../ü", &x), (long.as_str(), &x)],
            Compression::Stored,
        ));
        assert_eq!(found.len(), 5, "{found:?}");
        assert!(matches!(&found[0], Problem::Tensor { name, .. } if name == "a"));
        assert!(matches!(&found[1], Problem::RepeatedName { name } if name == "x"));
        assert!(found[2..].iter().all(|p| matches!(p, Problem::BadName { .. })));
    }
}
