//! Several NumPy arrays in one zip archive.
//!
//! Reads stored and deflated members, zip64 included; names come without their `.npy`. An archive is
//! looked over before anything is decompressed: members may not overlap, nor claim more than deflate
//! can pack or [`Limits`] allow, and each claim must match the array's own header. Members that are
//! no arrays are refused, encrypted ones too.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::path::Path;

use flate2::bufread::DeflateDecoder;
use flate2::write::DeflateEncoder;
use rawzip::path::{EntryPath, ZipFilePath};
use rawzip::{CompressionMethod, ZipArchive, ZipArchiveWriter};

use crate::error::{Format, FormatError, Problem};
use crate::map::Mapped;
use crate::npy::{self, Header, LONGEST_START};
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
    load(file.as_ref(), limits).map_err(|problems| FormatError::Invalid {
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
    load(bytes, limits).map_err(|problems| FormatError::Invalid { path: None, format: Format::Npz, problems })
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

/// A member as the archive's directory tells of it, its data found but not looked at.
struct Member<'a> {
    name: String,
    deflated: bool,
    /// Size after decompression, as claimed.
    claimed: u64,
    checksum: u32,
    data: &'a [u8],
}

fn load(bytes: &[u8], limits: Limits) -> Result<Vec<(String, Stored)>, Vec<Problem>> {
    let archive = ZipArchive::from_slice(bytes).map_err(|e| vec![broken(e)])?;
    let mut problems = Vec::new();
    let members = survey(&archive, limits, &mut problems);
    // A hostile archive is not worth decompressing to find out what else is wrong with it.
    let hostile = problems.iter().any(|p| matches!(p, Problem::Overlap { .. } | Problem::OverLimit { .. }));
    if hostile {
        return Err(problems);
    }
    let mut arrays = Vec::new();
    for member in members {
        match unpack(&member) {
            Ok(array) => arrays.push((member.name, array)),
            Err(found) => problems.extend(found.into_iter().map(|p| p.of(&member.name))),
        }
    }
    if problems.is_empty() { Ok(arrays) } else { Err(problems) }
}

/// The members that can be unpacked; what is wrong with the others, or with all, goes to `problems`.
fn survey<'a>(
    archive: &'a rawzip::ZipSliceArchive<&'a [u8]>,
    limits: Limits,
    problems: &mut Vec<Problem>,
) -> Vec<Member<'a>> {
    let mut members = Vec::new();
    let mut spans = Vec::new();
    let mut names = HashSet::new();
    let (mut found, mut total) = (0, 0u64);
    for entry in archive.entries() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(e) => {
                problems.push(broken(e));
                break;
            }
        };
        found += 1;
        let path = entry.file_path();
        let full = match str::from_utf8(path.as_bytes()) {
            Ok(name) => name,
            Err(_) => {
                let name = String::from_utf8_lossy(path.as_bytes()).into_owned();
                problems.push(Problem::BadName { name, why: "it is not utf-8" });
                continue;
            }
        };
        let (claimed, packed) = (entry.uncompressed_size_hint(), entry.compressed_size_hint());
        if entry.is_dir() && claimed == 0 {
            continue;
        }
        total = total.saturating_add(claimed);
        let name = full.strip_suffix(".npy").unwrap_or(full).to_owned();
        if !names.insert(name.clone()) {
            problems.push(Problem::RepeatedName { name: name.clone() });
        }
        let before = problems.len();
        if !full.ends_with(".npy") {
            problems.push(Problem::NotAnArray.of(full));
        }
        if entry.flags().is_encrypted() {
            problems.push(Problem::Encrypted.of(&name));
        }
        let deflated = match entry.compression_method() {
            CompressionMethod::STORE => false,
            CompressionMethod::DEFLATE => true,
            other => {
                problems.push(Problem::Compression { method: other.as_u16() }.of(&name));
                continue;
            }
        };
        if !deflated && claimed != packed {
            problems.push(Problem::Claim { claimed, found: packed }.of(&name));
        }
        if deflated && claimed > most_inflated(packed) {
            problems.push(Problem::Ratio { claimed, compressed: packed }.of(&name));
        }
        match archive.get_entry(entry.wayfinder()) {
            Err(e) => problems.push(broken(e).of(&name)),
            Ok(local) => {
                let end = local.compressed_data_range().1;
                spans.push((entry.local_header_offset(), end, name.clone()));
                if problems.len() == before {
                    members.push(Member {
                        name,
                        deflated,
                        claimed,
                        checksum: entry.crc32(),
                        data: local.data(),
                    });
                }
            }
        }
    }
    if found != archive.entries_hint() {
        problems.push(Problem::MemberCount { claimed: archive.entries_hint(), found });
    }
    if total > limits.total {
        problems.push(Problem::OverLimit { claimed: total, limit: limits.total });
    }
    problems.extend(overlaps(spans));
    members
}

/// Deflate spends at least two bits on 258 bytes.
fn most_inflated(packed: u64) -> u64 {
    packed.saturating_mul(1032)
}

/// Members that share bytes: the trick of archives that unpack to more than 1032 times their size.
fn overlaps(mut spans: Vec<(u64, u64, String)>) -> Vec<Problem> {
    spans.sort();
    let mut problems = Vec::new();
    let mut spans = spans.into_iter();
    let Some(mut furthest) = spans.next() else { return problems };
    for span in spans {
        if span.0 < furthest.1 {
            problems.push(Problem::Overlap {
                first: furthest.2.clone(),
                first_range: furthest.0..furthest.1,
                second: span.2.clone(),
                second_range: span.0..span.1,
            });
        }
        if span.1 > furthest.1 {
            furthest = span;
        }
    }
    problems
}

fn unpack(member: &Member<'_>) -> Result<Stored, Vec<Problem>> {
    let inflated;
    let bytes = if member.deflated {
        inflated = inflate(member)?;
        &inflated
    } else {
        member.data
    };
    let mut problems = Vec::new();
    let got = rawzip::crc32(bytes);
    if got != member.checksum {
        problems.push(Problem::Checksum { want: member.checksum, got });
    }
    match npy::load(bytes) {
        Ok(array) if problems.is_empty() => return Ok(array),
        Ok(_) => {}
        Err(found) => problems.extend(found),
    }
    Err(problems)
}

/// Decompresses a member: its header first, then the rest if the array is as large as the archive says.
/// The vector grows with the bytes that come out, never ahead of them.
fn inflate(member: &Member<'_>) -> Result<Vec<u8>, Vec<Problem>> {
    let mut out = Vec::new();
    let mut decoder = DeflateDecoder::new(member.data);
    pull(&mut decoder, &mut out, (LONGEST_START as u64).min(member.claimed))?;
    let header = Header::parse(&out)?;
    let problems = header.check_size(member.claimed);
    if !problems.is_empty() {
        return Err(problems);
    }
    let rest = member.claimed - out.len() as u64;
    // One byte more than claimed, to notice when there is more.
    pull(&mut decoder, &mut out, rest + 1)?;
    match out.len() as u64 {
        n if n == member.claimed => Ok(out),
        found => Err(vec![Problem::Claim { claimed: member.claimed, found }]),
    }
}

fn pull(decoder: &mut DeflateDecoder<&[u8]>, out: &mut Vec<u8>, most: u64) -> Result<(), Vec<Problem>> {
    match decoder.take(most).read_to_end(out) {
        Ok(_) => Ok(()),
        Err(e) => Err(vec![Problem::Inflate { after: out.len() as u64, reason: e.to_string() }]),
    }
}

fn broken(e: rawzip::Error) -> Problem {
    Problem::Archive { reason: e.to_string() }
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
    use std::time::{Duration, Instant};

    use thalweg_core::{Buffer, DType, Shape};

    use super::*;
    use crate::error::Part;
    use crate::samples::{assert_same, damage, problems, tensors};

    fn bytes(values: &[u8]) -> Stored {
        Stored { buffer: Buffer::from_slice(values), shape: Shape::from([values.len()]) }
    }

    /// Where the directory tells of member `i`; the fields' offsets are those of the zip standard.
    fn directory(file: &[u8], i: usize) -> usize {
        file.windows(4).enumerate().filter(|(_, w)| w == b"PK\x01\x02").nth(i).unwrap().0
    }
    const FLAGS: usize = 8;
    const METHOD: usize = 10;
    const CHECKSUM: usize = 16;
    const UNCOMPRESSED: usize = 24;
    const OFFSET: usize = 42;

    fn patched(file: &[u8], member: usize, field: usize, value: &[u8]) -> Vec<u8> {
        let at = directory(file, member) + field;
        let mut out = file.to_vec();
        out[at..at + value.len()].copy_from_slice(value);
        out
    }

    // np.savez_compressed(f, x=np.arange(3, dtype='u1'), y=np.array(2.5)), NumPy 2.4.6
    const NUMPY: &[u8] = b"PK\x03\x04-\x00\x00\x00\x08\x00\x00\x00!\x00H\xeaf\xec\xff\xff\xff\xff\xff\xff\xff\xff\
        \x05\x00\x14\x00x.npy\x01\x00\x10\x00\x83\x00\x00\x00\x00\x00\x00\x00G\x00\x00\x00\x00\x00\x00\x00\x9b\xec\
        \x17\xea\x1b\x10\xc9\xc8P\xc6P\xad\x9e\x92Z\x9c\x5c\xa4n\xa5\xa0^Sj\xa8\xae\xa3\xa0\x9e\x96_TR\x94\x98\x17\
        \x9f_\x94\x92\n\x12wK\xcc)N\x05\x8a\x17g$\x16\xa4\x02\xf9\x1a\xc6:\x9a:\n\xb5\n\x14\x00.\x06F&\x00PK\x03\
        \x04-\x00\x00\x00\x08\x00\x00\x00!\x005\xb4:\x93\xff\xff\xff\xff\xff\xff\xff\xff\x05\x00\x14\x00y.npy\x01\
        \x00\x10\x00\x88\x00\x00\x00\x00\x00\x00\x00G\x00\x00\x00\x00\x00\x00\x00\x9b\xec\x17\xea\x1b\x10\xc9\xc8P\
        \xc6P\xad\x9e\x92Z\x9c\x5c\xa4n\xa5\xa0n\x93f\xa1\xae\xa3\xa0\x9e\x96_TR\x94\x98\x17\x9f_\x94\x92\n\x12wK\
        \xcc)N\x05\x8a\x17g$\x16\xa4\x02\xf9\x1a\x9a:\n\xb5\n\x14\x01.\x060`q\x00\x00PK\x01\x02-\x03-\x00\x00\x00\
        \x08\x00\x00\x00!\x00H\xeaf\xecG\x00\x00\x00\x83\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\
        \x80\x01\x00\x00\x00\x00x.npyPK\x01\x02-\x03-\x00\x00\x00\x08\x00\x00\x00!\x005\xb4:\x93G\x00\x00\x00\x88\
        \x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80\x01~\x00\x00\x00y.npyPK\x05\x06\x00\x00\x00\
        \x00\x02\x00\x02\x00f\x00\x00\x00\xfc\x00\x00\x00\x00\x00";

    #[test]
    fn archives_of_numpy_are_read() {
        let arrays = parse(NUMPY).unwrap();
        let names: Vec<&str> = arrays.iter().map(|(n, _)| n.as_str()).collect();
        assert_eq!(names, ["x", "y"]);
        assert_eq!(arrays[0].1.buffer.as_slice::<u8>(), [0, 1, 2]);
        assert_eq!(arrays[1].1.buffer.as_slice::<f64>(), [2.5]);
        assert_eq!(arrays[1].1.shape.rank(), 0);
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
    fn a_changed_or_cut_archive_never_panics() {
        damage(NUMPY, parse);
        damage(&encode([("a", &bytes(&[1, 2])), ("b", &bytes(&[]))], Compression::Stored).unwrap(), parse);
    }

    #[test]
    fn claims_of_ten_gigabytes_fail_at_once() {
        let start = Instant::now();
        let file = patched(NUMPY, 0, UNCOMPRESSED, &4_000_000_000u32.to_le_bytes());
        let ratio = Problem::Ratio { claimed: 4_000_000_000, compressed: 71 };
        assert_eq!(problems(parse(&file)), [ratio.of("x")]);

        // The array's own header claims more than the archive does.
        let dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (2500000000,), }";
        let mut array = b"\x93NUMPY\x01\x00v\x00".to_vec();
        array.extend(dict.bytes());
        array.resize(128, b' ');
        for compression in [Compression::Stored, Compression::Deflated] {
            let file = raw("x.npy", &array, compression);
            let cut = Problem::Truncated { part: Part::Data, need: 10_000_000_000, have: 0 };
            assert_eq!(problems(parse(&file)), [cut.of("x")]);
        }
        assert!(start.elapsed() < Duration::from_millis(200));
    }

    /// An archive of one member that need not be an array.
    fn raw(name: &str, contents: &[u8], compression: Compression) -> Vec<u8> {
        let mut archive = ZipArchiveWriter::new(Vec::new());
        let method = match compression {
            Compression::Stored => CompressionMethod::STORE,
            Compression::Deflated => CompressionMethod::DEFLATE,
        };
        let (mut entry, config) = archive.new_file(name).compression_method(method).start().unwrap();
        let mut packed = DeflateEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(contents).unwrap();
        let packed = packed.finish().unwrap();
        let mut data = config.wrap(io::sink());
        data.write_all(contents).unwrap();
        let (_, descriptor) = data.finish().unwrap();
        entry.write_all(if compression == Compression::Stored { contents } else { &packed }).unwrap();
        entry.finish(descriptor).unwrap();
        archive.finish().unwrap()
    }

    #[test]
    fn a_bomb_is_stopped_by_the_limit_before_it_is_unpacked() {
        let zeros = bytes(&vec![0; 1 << 20]);
        let file = encode([("x", &zeros)], Compression::Deflated).unwrap();
        assert!(file.len() < 4096);
        let limits = Limits { total: 1 << 19 };
        let over = Problem::OverLimit { claimed: (1 << 20) + 128, limit: 1 << 19 };
        assert_eq!(problems(parse_within(&file, limits)), [over]);
        assert_same(&parse_within(&file, Limits { total: 1 << 21 }).unwrap()[0].1, &zeros);
    }

    #[test]
    fn each_fault_of_a_member_has_its_problem() {
        let faults = |field, value: &[u8]| problems(parse(&patched(NUMPY, 0, field, value)));
        assert_eq!(faults(FLAGS, &[1]), [Problem::Encrypted.of("x")]);
        assert_eq!(faults(METHOD, &[12, 0]), [Problem::Compression { method: 12 }.of("x")]);
        assert_eq!(faults(METHOD, &[0, 0]), [Problem::Claim { claimed: 131, found: 71 }.of("x")]);
        assert_eq!(faults(CHECKSUM, &[0; 4]), [Problem::Checksum { want: 0, got: 0xec66_ea48 }.of("x")],);
        let short = Problem::Truncated { part: Part::Data, need: 3, have: 2 };
        assert_eq!(faults(UNCOMPRESSED, &[130]), [short.of("x")]);
        assert_eq!(faults(UNCOMPRESSED, &[132]), [Problem::Trailing { count: 1 }.of("x")]);
        assert!(matches!(&faults(OFFSET, &[9, 9, 9])[..], [Problem::Tensor { problem, .. }, ..]
            if matches!(**problem, Problem::Archive { .. })));
        assert!(matches!(&problems(parse(b"nothing"))[..], [Problem::Archive { .. }]));

        // More comes out than was claimed: the array's header agrees with the claim, the data does not.
        let array = npy::encode(&bytes(&[7; 3])).unwrap();
        let file = raw("x.npy", &[&array[..], &[0; 5]].concat(), Compression::Deflated);
        let file = patched(&file, 0, UNCOMPRESSED, &131u32.to_le_bytes());
        assert_eq!(problems(parse(&file)), [Problem::Claim { claimed: 131, found: 132 }.of("x")]);

        let mut file = NUMPY.to_vec();
        file[55] = 0xff;
        assert!(matches!(&problems(parse(&file))[..], [Problem::Tensor { problem, .. }]
            if matches!(**problem, Problem::Inflate { after: 0, .. })));

        assert_eq!(
            problems(parse(&raw("readme", b"hello", Compression::Stored))),
            [Problem::NotAnArray.of("readme")]
        );
    }

    #[test]
    fn each_fault_of_the_whole_has_its_problem() {
        let file = patched(NUMPY, 1, OFFSET, &[0]);
        assert_eq!(
            problems(parse(&file)),
            [Problem::Overlap {
                first: "x".into(),
                first_range: 0..126,
                second: "y".into(),
                second_range: 0..126
            }]
        );
        let file = patched(NUMPY, 1, 46, b"x");
        assert_eq!(problems(parse(&file)), [Problem::RepeatedName { name: "x".into() }]);
        let file = patched(NUMPY, 1, 46, b"\xff");
        assert!(matches!(&problems(parse(&file))[..], [Problem::BadName { .. }]));
        let mut file = NUMPY.to_vec();
        let end = file.len() - 22;
        (file[end + 8], file[end + 10]) = (3, 3);
        assert_eq!(problems(parse(&file)), [Problem::MemberCount { claimed: 3, found: 2 }]);
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
