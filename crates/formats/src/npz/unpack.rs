//! Reading an archive that may be hostile: look it over, then unpack member by member.

use std::collections::HashSet;
use std::io::Read;

use flate2::bufread::DeflateDecoder;
use rawzip::{CompressionMethod, ZipArchive};

use super::Limits;
use crate::error::Problem;
use crate::npy::{self, Header, LONGEST_START};
use crate::stored::Stored;

/// A member as the archive's directory tells of it, its data found but not looked at.
struct Member<'a> {
    name: String,
    deflated: bool,
    /// Size after decompression, as claimed.
    claimed: u64,
    checksum: u32,
    data: &'a [u8],
}

/// Reads all arrays, or says everything that is wrong with the archive.
pub(super) fn load(bytes: &[u8], limits: Limits) -> Result<Vec<(String, Stored)>, Vec<Problem>> {
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

#[cfg(test)]
mod tests {
    use std::io::{self, Write};
    use std::time::{Duration, Instant};

    use flate2::write::DeflateEncoder;
    use rawzip::ZipArchiveWriter;
    use thalweg_core::{Buffer, Shape};

    use super::*;
    use crate::error::Part;
    use crate::npz::{Compression, encode, parse, parse_within};
    use crate::samples::{assert_same, damage, problems};

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
}
