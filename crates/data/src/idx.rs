//! IDX files, the format of MNIST: a magic number, the sizes, the elements in big-endian order.

use std::io::{BufRead, Read};
use std::path::Path;

use thalweg_core::{Buffer, DType};
use thalweg_tensor::Tensor;

use crate::error::{BadRecord, DataError, Place, Reason};
use crate::records;

/// The tensor of a file, which may be gzipped.
pub fn read(path: impl AsRef<Path>) -> Result<Tensor, DataError> {
    parse(path.as_ref(), records::open(path.as_ref())?)
}

/// The tensor in these bytes, gzipped or not; `name` is for messages.
///
/// ```
/// use thalweg_data::idx;
/// let file = [0, 0, 0x0b, 1, 0, 0, 0, 2, 0, 1, 0xff, 0xff]; // i16, one axis of 2
/// assert_eq!(idx::parse("a.idx", &file[..])?.to_vec::<i16>(), [1, -1]);
/// let e = idx::parse("a.idx", &file[..11]).unwrap_err();
/// assert_eq!(e.to_string(), "a.idx at byte 8: needs 4 bytes and 3 are there");
/// # Ok::<(), thalweg_data::DataError>(())
/// ```
pub fn parse(name: impl AsRef<Path>, bytes: impl BufRead) -> Result<Tensor, DataError> {
    let path = name.as_ref();
    let bytes = records::unpacked(bytes).map_err(DataError::io("read", path))?;
    let mut source = Source { path, bytes, at: 0 };

    let magic: [u8; 4] = source.array()?;
    let dtype = match magic {
        [0, 0, 0x08, _] => DType::U8,
        [0, 0, 0x09, _] => DType::I8,
        [0, 0, 0x0b, _] => DType::I16,
        [0, 0, 0x0c, _] => DType::I32,
        [0, 0, 0x0d, _] => DType::F32,
        [0, 0, 0x0e, _] => DType::F64,
        _ => return Err(source.bad(0, Reason::Magic { found: magic.to_vec(), want: "an IDX file" })),
    };
    let mut sizes = Vec::new();
    for _ in 0..magic[3] {
        sizes.push(u64::from(u32::from_be_bytes(source.array()?)));
    }
    let need = sizes.iter().try_fold(dtype.size() as u64, |n, &s| n.checked_mul(s));
    let Some(need) = need.filter(|&n| isize::try_from(n).is_ok()) else {
        return Err(source.bad(4, Reason::Overflow { sizes }));
    };
    let mut data = source.exactly(need)?;
    data.chunks_exact_mut(dtype.size()).for_each(<[u8]>::reverse);
    let buffer = Buffer::from_le_bytes(dtype, &data).expect("whole elements, and none of them bool");
    Ok(Tensor::from_buffer(buffer, sizes.iter().map(|&s| s as usize).collect::<Vec<_>>()))
}

struct Source<'a, R> {
    path: &'a Path,
    bytes: R,
    at: u64,
}

impl<R: BufRead> Source<'_, R> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], DataError> {
        let part = self.take(N as u64)?;
        Ok(part.try_into().expect("as many as asked for"))
    }

    /// The data, and nothing behind it.
    fn exactly(&mut self, need: u64) -> Result<Vec<u8>, DataError> {
        let data = self.take(need)?;
        match self.bytes.fill_buf() {
            Ok([]) => Ok(data),
            Ok(_) => Err(self.bad(self.at, Reason::Trailing { need })),
            Err(e) => Err(self.bad(self.at, Reason::Unreadable(e.to_string()))),
        }
    }

    /// Memory grows with what is read, not with what is claimed.
    fn take(&mut self, need: u64) -> Result<Vec<u8>, DataError> {
        let mut part = Vec::new();
        if let Err(e) = (&mut self.bytes).take(need).read_to_end(&mut part) {
            return Err(self.bad(self.at + part.len() as u64, Reason::Unreadable(e.to_string())));
        }
        let have = part.len() as u64;
        if have < need {
            return Err(self.bad(self.at, Reason::Truncated { need, have }));
        }
        self.at += need;
        Ok(part)
    }

    fn bad(&self, at: u64, reason: Reason) -> DataError {
        BadRecord { path: self.path.to_owned(), place: Place::Byte(at), reason }.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(code: u8, sizes: &[u32], data: &[u8]) -> Vec<u8> {
        let rank = sizes.len() as u8;
        let sizes = sizes.iter().flat_map(|s| s.to_be_bytes());
        [0, 0, code, rank].into_iter().chain(sizes).chain(data.iter().copied()).collect()
    }

    #[test]
    fn every_element_type_is_read_in_big_endian_order() {
        let f = file(0x0d, &[1, 2], &[1.5f32.to_be_bytes(), (-2f32).to_be_bytes()].concat());
        let t = parse("f", &f[..]).unwrap();
        assert_eq!((t.shape().to_vec(), t.to_vec::<f32>()), (vec![1, 2], vec![1.5, -2.0]));
        let f = file(0x0e, &[1], &3.25f64.to_be_bytes());
        assert_eq!(parse("f", &f[..]).unwrap().to_vec::<f64>(), [3.25]);
        let f = file(0x0c, &[1], &(-70_000i32).to_be_bytes());
        assert_eq!(parse("f", &f[..]).unwrap().to_vec::<i32>(), [-70_000]);
        let f = file(0x09, &[2], &[255, 1]);
        assert_eq!(parse("f", &f[..]).unwrap().to_vec::<i8>(), [-1, 1]);
        assert_eq!(parse("f", &file(0x08, &[0, 7], &[])[..]).unwrap().shape().to_vec(), [0, 7]);
    }

    #[test]
    fn claims_that_the_bytes_do_not_keep_are_errors() {
        let huge = file(0x08, &[u32::MAX, u32::MAX], &[1]);
        let says = |bytes: &[u8]| parse("f", bytes).unwrap_err().to_string();
        assert!(
            says(&huge).contains("needs 18446744065119617025 bytes")
                || says(&huge).contains("more than memory")
        );
        assert!(says(&file(0x08, &[2], &[1, 2, 3])).contains("more bytes follow the 2"));
        assert!(says(b"PK\x03\x04").contains("not an IDX file"));
        assert_eq!(says(b"\0\0"), "f at byte 0: needs 4 bytes and 2 are there");
    }
}
