//! The npy header: magic, version, and a dict of exactly three keys.

use thalweg_core::{DType, Shape};

use super::dict::{Descr, Dict};
use crate::error::{Part, Problem};
use crate::stored::{Dense, MAX_RANK};

const MAGIC: &[u8; 6] = b"\x93NUMPY";

/// The longest header read. NumPy itself stops at 10 000 bytes unless told otherwise.
const HEADER_LIMIT: usize = 1 << 16;

/// Bytes from the start of a file that surely hold the whole header, if it is a valid one.
pub(crate) const LONGEST_START: usize = 12 + HEADER_LIMIT;

/// What the header says, and where the elements start.
#[derive(Debug)]
pub(crate) struct Header {
    pub(crate) dtype: DType,
    pub(crate) big_endian: bool,
    pub(crate) fortran: bool,
    pub(crate) shape: Shape,
    pub(crate) start: usize,
    /// Bytes of elements.
    pub(crate) data: u64,
}

impl Header {
    /// Reads the header at the start of `bytes`, or says everything that is wrong with it.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, Vec<Problem>> {
        let (text, start) = text(bytes).map_err(|p| vec![p])?;
        let mut dict = Dict::default();
        if let Err(p) = dict.read(&text) {
            dict.problems.push(p);
            return Err(dict.problems);
        }
        let Dict { descr, fortran, shape, mut problems } = dict;
        for (there, key) in
            [(descr.is_some(), "descr"), (fortran.is_some(), "fortran_order"), (shape.is_some(), "shape")]
        {
            if !there {
                problems.push(Problem::MissingKey { key });
            }
        }
        let dtype = descr.and_then(|d| read_descr(&d).map_err(|p| problems.push(p)).ok());
        let shape = shape.and_then(|s| read_shape(s).map_err(|p| problems.push(p)).ok());
        match (dtype, fortran, shape) {
            (Some((dtype, big_endian)), Some(fortran), Some((shape, numel))) if problems.is_empty() => {
                let data = numel as u64 * dtype.size() as u64;
                Ok(Self { dtype, big_endian, fortran, shape, start, data })
            }
            _ => Err(problems),
        }
    }

    /// Whether the elements lie in the file as they would in memory.
    pub(crate) fn is_native(&self) -> bool {
        let swapped = self.big_endian && self.dtype.size() > 1;
        let turned = self.fortran && self.shape.rank() > 1;
        !swapped && !turned
    }

    /// What is wrong with a file of this length and this header.
    pub(crate) fn check_size(&self, file: u64) -> Vec<Problem> {
        let have = file.saturating_sub(self.start as u64);
        if have < self.data {
            vec![Problem::Truncated { part: Part::Data, need: self.data, have }]
        } else if have > self.data {
            vec![Problem::Trailing { count: have - self.data }]
        } else {
            Vec::new()
        }
    }
}

/// The start of a file as NumPy writes it, padded so that the elements are aligned to 64 bytes.
pub(super) fn written(tensor: &Dense<'_>) -> Vec<u8> {
    let descr = match tensor.dtype {
        DType::Bool => "|b1",
        DType::U8 => "|u1",
        DType::I8 => "|i1",
        DType::I16 => "<i2",
        DType::I32 => "<i4",
        DType::U32 => "<u4",
        DType::I64 => "<i8",
        DType::F16 => "<f2",
        DType::F32 => "<f4",
        DType::F64 => "<f8",
        DType::BF16 => unreachable!("refused before anything is written"),
    };
    let shape = match tensor.shape {
        [n] => format!("({n},)"),
        dims => format!("({})", dims.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    };
    let mut dict = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}");
    // Magic, version, length and the newline come to 11 bytes.
    let padding = (dict.len() + 11).next_multiple_of(64) - dict.len() - 11;
    dict.extend(std::iter::repeat_n(' ', padding));
    dict.push('\n');
    let length = u16::try_from(dict.len()).expect("64 axes of 20 digits fit");
    [MAGIC, &[1, 0][..], &length.to_le_bytes(), dict.as_bytes()].concat()
}

/// The header's text and the offset of the first element.
fn text(bytes: &[u8]) -> Result<(String, usize), Problem> {
    let have = bytes.len() as u64;
    let magic = &bytes[..bytes.len().min(MAGIC.len())];
    if !MAGIC.starts_with(magic) {
        return Err(Problem::Magic { found: magic.to_vec() });
    }
    let cut = |need| Problem::Truncated { part: Part::Preamble, need, have };
    let &[major, minor] = bytes.get(6..8).and_then(|v| v.first_chunk()).ok_or_else(|| cut(10))?;
    let (start, length) = match (major, minor) {
        (1, 0) => {
            let n = bytes.get(8..10).and_then(|n| n.first_chunk()).ok_or_else(|| cut(10))?;
            (10, usize::from(u16::from_le_bytes(*n)))
        }
        (2 | 3, 0) => {
            let n = bytes.get(8..12).and_then(|n| n.first_chunk()).ok_or_else(|| cut(12))?;
            (12, u32::from_le_bytes(*n) as usize)
        }
        _ => return Err(Problem::Version { major, minor }),
    };
    if length > HEADER_LIMIT {
        return Err(Problem::HeaderTooLong { length: length as u64, limit: HEADER_LIMIT as u64 });
    }
    let rest = &bytes[start..];
    let header = rest.get(..length).ok_or(Problem::Truncated {
        part: Part::Header,
        need: length as u64,
        have: rest.len() as u64,
    })?;
    let text = if major == 3 {
        str::from_utf8(header).map_err(|e| Problem::HeaderUtf8 { at: e.valid_up_to() })?.to_owned()
    } else {
        // Latin-1: each byte is its own code point.
        header.iter().map(|&b| char::from(b)).collect()
    };
    Ok((text, start + length))
}

/// The dtype, and whether it is big-endian.
fn read_descr(descr: &Descr) -> Result<(DType, bool), Problem> {
    let text = match descr {
        Descr::Plain(text) => text.as_str(),
        Descr::Structured => {
            let advice = "save each field as an array of its own";
            return Err(Problem::DType { found: "structured".to_owned(), advice });
        }
    };
    let unsupported = |advice| Err(Problem::DType { found: text.to_owned(), advice });
    let order = text.chars().next().filter(|c| matches!(c, '<' | '>' | '|' | '='));
    let dtype = match &text[order.map_or(0, char::len_utf8)..] {
        "b1" => DType::Bool,
        "u1" => DType::U8,
        "i1" => DType::I8,
        "i2" => DType::I16,
        "i4" => DType::I32,
        "u4" => DType::U32,
        "i8" => DType::I64,
        "f2" => DType::F16,
        "f4" => DType::F32,
        "f8" => DType::F64,
        "u2" => return unsupported("cast to int32 before saving"),
        "u8" => return unsupported("cast to int64 before saving"),
        // What NumPy makes of the bfloat16 arrays of ml_dtypes.
        "V2" | "bfloat16" => {
            return unsupported("npy has no bfloat16: save as float32, or use safetensors");
        }
        "f12" | "f16" => return unsupported("cast to float64 before saving"),
        "c8" | "c16" | "c32" => return unsupported("save the real and the imaginary part as two arrays"),
        "O" => return unsupported("an object array is a pickle, which may run code: save numbers"),
        _ => return unsupported("cast to bool, a signed integer, uint8, uint32 or a float before saving"),
    };
    match order {
        Some('<') => Ok((dtype, false)),
        Some('>') => Ok((dtype, true)),
        // The writer's own order, which NumPy too takes to be the reader's.
        Some('=') => Ok((dtype, cfg!(target_endian = "big"))),
        _ if dtype.size() == 1 => Ok((dtype, false)),
        _ => unsupported("its byte order is not stated: '<' or '>'"),
    }
}

/// The shape and its number of elements.
fn read_shape(dims: Vec<u64>) -> Result<(Shape, usize), Problem> {
    if dims.len() > MAX_RANK {
        return Err(Problem::Rank { rank: dims.len(), limit: MAX_RANK });
    }
    let shape: Option<Shape> = dims.iter().map(|&d| usize::try_from(d).ok()).collect();
    match shape.and_then(|s| s.checked_numel().ok().map(|n| (s, n))) {
        Some(found) => Ok(found),
        None => Err(Problem::Overflow { shape: dims }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The problems of a version 1.0 file with this dict.
    fn faults(dict: &str) -> Vec<Problem> {
        let length = (dict.len() as u16).to_le_bytes();
        Header::parse(&[MAGIC, &[1, 0][..], &length, dict.as_bytes()].concat()).unwrap_err()
    }

    fn dtype(descr: &str) -> Result<(DType, bool), Problem> {
        read_descr(&Descr::Plain(descr.to_owned()))
    }

    #[test]
    fn byte_orders_are_read() {
        assert_eq!(dtype("<f4"), Ok((DType::F32, false)));
        assert_eq!(dtype(">u4"), Ok((DType::U32, true)));
        assert_eq!(dtype("=i8"), Ok((DType::I64, cfg!(target_endian = "big"))));
        assert_eq!(dtype("|b1"), Ok((DType::Bool, false)));
        assert_eq!(dtype("u1"), Ok((DType::U8, false)));
        assert!(dtype("|f4").is_err() && dtype("f4").is_err());
    }

    #[test]
    fn a_dtype_without_counterpart_is_refused_with_advice() {
        for (descr, advice) in [
            ("<u2", "int32"),
            ("<u8", "int64"),
            ("|V2", "safetensors"),
            ("bfloat16", "save as float32"),
            ("<f16", "float64"),
            ("<c8", "two arrays"),
            ("|O", "pickle"),
            ("<M8[ns]", "cast to"),
            ("", "cast to"),
            ("é4", "cast to"),
        ] {
            match dtype(descr).unwrap_err() {
                Problem::DType { found, advice: a } => {
                    assert!(found == descr && a.contains(advice), "{descr}: {a}")
                }
                other => panic!("{other}"),
            }
        }
        // np.dtype([('a', '<f4'), ('b', [('c', 'u1', (2,))])]).descr
        let found = faults(
            "{'descr': [('a', '<f4'), ('b', [('c', '|u1', (2,))])], 'fortran_order': False, 'shape': (), }",
        );
        assert!(matches!(&found[..], [Problem::DType { found, .. }] if found == "structured"));
    }

    #[test]
    fn python_two_and_spare_spaces_are_read() {
        let dict = "{\"shape\":( 3L ,\t2L),'fortran_order' : True,'descr':'<f4'} \n";
        let length = (dict.len() as u16).to_le_bytes();
        let h = Header::parse(&[MAGIC, &[1, 0][..], &length, dict.as_bytes()].concat()).unwrap();
        assert_eq!((h.shape, h.fortran, h.data), (Shape::from([3, 2]), true, 24));
    }

    #[test]
    fn all_faults_of_a_dict_are_listed_at_once() {
        let found = faults(
            "{'descr': '<u2', 'shape': (4294967296, 4294967296), 'shape': (), 'fortran_order': (1, 2), 'x': 'y'}",
        );
        assert_eq!(
            found,
            [
                Problem::RepeatedKey { key: "shape".to_owned() },
                Problem::Kind { key: "fortran_order".to_owned(), want: "True or False", got: "a tuple" },
                Problem::UnknownKey { key: "x".to_owned() },
                Problem::MissingKey { key: "fortran_order" },
                Problem::DType { found: "<u2".to_owned(), advice: "cast to int32 before saving" },
                Problem::Overflow { shape: vec![1 << 32, 1 << 32] },
            ]
        );
        assert_eq!(faults("{}").len(), 3);
        let axes = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({})}}", "1,".repeat(65));
        assert_eq!(faults(&axes), [Problem::Rank { rank: 65, limit: 64 }]);
        let huge = "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999999, 0)}";
        assert_eq!(faults(huge), [Problem::Overflow { shape: vec![u64::MAX, 0] }]);
    }

    #[test]
    fn a_bad_start_has_its_problem() {
        let fault = |bytes: &[u8]| match &Header::parse(bytes).unwrap_err()[..] {
            [one] => one.clone(),
            more => panic!("{more:?}"),
        };
        let cut = |need, have| Problem::Truncated { part: Part::Preamble, need, have };
        assert_eq!(fault(b""), cut(10, 0));
        assert_eq!(fault(b"\x93NUM"), cut(10, 4));
        assert_eq!(fault(b"\x93NUMPY\x02\x00\x01\x00"), cut(12, 10));
        assert_eq!(fault(b"PK\x03\x04"), Problem::Magic { found: b"PK\x03\x04".to_vec() });
        assert_eq!(fault(b"\x93NUMPY\x04\x00"), Problem::Version { major: 4, minor: 0 });
        let long = Problem::HeaderTooLong { length: u64::from(u32::MAX), limit: 1 << 16 };
        assert_eq!(fault(b"\x93NUMPY\x02\x00\xff\xff\xff\xff"), long);
        let cut = Problem::Truncated { part: Part::Header, need: 118, have: 1 };
        assert_eq!(fault(b"\x93NUMPY\x01\x00v\x00{"), cut);
        assert_eq!(fault(b"\x93NUMPY\x03\x00\x02\x00\x00\x00{\xff"), Problem::HeaderUtf8 { at: 1 });
    }
}
