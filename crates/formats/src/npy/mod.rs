//! One NumPy array per file.
//!
//! Reads versions 1.0 to 3.0, both byte orders, C and Fortran order; gives row-major tensors. Writes
//! version 1.0 in C order, little-endian, as `numpy.save` does. Refuses what is no plain number: bf16
//! has no npy dtype (save it as f32, or use safetensors), and object arrays are pickles.

mod dict;
mod header;

use std::io::{self, Write};
use std::path::Path;

use thalweg_core::{Buffer, DType, Shape};

use crate::error::{Format, FormatError, Problem};
use crate::map::Mapped;
use crate::replace::replace;
use crate::stored::{Dense, Stored, bad_bool, swapped};
pub(crate) use header::{Header, LONGEST_START};

/// Reads an array into memory. The file must not change meanwhile, see the
/// [crate documentation](crate#mapped-files).
///
/// ```
/// use thalweg_core::{Buffer, Shape};
/// use thalweg_formats::{Stored, npy};
///
/// let path = std::env::temp_dir().join(format!("thalweg-doc-{}.npy", std::process::id()));
/// let t = Stored { buffer: Buffer::from_slice(&[1i32, 2, 3, 4]), shape: Shape::from([2, 2]) };
/// npy::write(&path, &t)?;
/// assert_eq!(npy::read(&path)?.buffer.as_slice::<i32>(), [1, 2, 3, 4]);
/// # std::fs::remove_file(path).unwrap();
/// # Ok::<(), thalweg_formats::FormatError>(())
/// ```
pub fn read(path: impl AsRef<Path>) -> Result<Stored, FormatError> {
    let path = path.as_ref();
    let file = Mapped::open(path)?;
    load(file.as_ref()).map_err(|problems| invalid(Some(path), problems))
}

/// Maps an array and lends it without a copy, as `numpy.load(path, mmap_mode="r")` does. What cannot
/// be lent (big-endian, Fortran order, misaligned) is copied. The file must not change while the
/// buffer lives, see the [crate documentation](crate#mapped-files).
pub fn open(path: impl AsRef<Path>) -> Result<Stored, FormatError> {
    let path = path.as_ref();
    let file = Mapped::open(path)?;
    let bytes = file.as_ref();
    let header = Header::parse(bytes).map_err(|problems| invalid(Some(path), problems))?;
    let fits = header.check_size(bytes.len() as u64).is_empty();
    if fits && header.is_native() {
        let range = header.start..bytes.len();
        if let Some(buffer) = Buffer::lend(file.clone(), range, header.dtype) {
            return Ok(Stored { buffer, shape: header.shape });
        }
    }
    load(bytes).map_err(|problems| invalid(Some(path), problems))
}

/// Reads an array from the bytes of a file.
///
/// ```
/// use thalweg_formats::{FormatError, Problem, npy};
///
/// match npy::parse(b"PK\x03\x04").unwrap_err() {
///     FormatError::Invalid { problems, .. } => assert!(matches!(problems[0], Problem::Magic { .. })),
///     other => panic!("{other}"),
/// }
/// ```
pub fn parse(bytes: &[u8]) -> Result<Stored, FormatError> {
    load(bytes).map_err(|problems| invalid(None, problems))
}

/// Writes an array, replacing the file in one step or leaving it as it was.
pub fn write<'a>(path: impl AsRef<Path>, tensor: impl Into<Dense<'a>>) -> Result<(), FormatError> {
    let (path, tensor) = (path.as_ref(), tensor.into());
    let problems = problems(&tensor);
    if !problems.is_empty() {
        return Err(FormatError::Refused { path: Some(path.to_owned()), format: Format::Npy, problems });
    }
    replace(path, |w| emit(&tensor, w))
}

/// The bytes that [`write`](fn@write) would put into a file.
pub fn encode<'a>(tensor: impl Into<Dense<'a>>) -> Result<Vec<u8>, FormatError> {
    let tensor = tensor.into();
    let problems = problems(&tensor);
    if !problems.is_empty() {
        return Err(FormatError::Refused { path: None, format: Format::Npy, problems });
    }
    let mut out = Vec::with_capacity(tensor.bytes.len() + 128);
    emit(&tensor, &mut out).expect("a vector takes all bytes");
    Ok(out)
}

/// Everything that keeps a tensor from being stored as npy.
pub(crate) fn problems(tensor: &Dense<'_>) -> Vec<Problem> {
    let mut problems = tensor.problems();
    if tensor.dtype == DType::BF16 {
        let advice = "npy has no bfloat16: save as f32, or use safetensors";
        problems.push(Problem::DType { found: tensor.dtype.name().to_owned(), advice });
    }
    problems
}

/// Writes header and elements of a tensor that has no [`problems`].
pub(crate) fn emit(tensor: &Dense<'_>, w: &mut dyn Write) -> io::Result<()> {
    w.write_all(&header::written(tensor))?;
    tensor.write_le(w)
}

/// Reads an array, or says everything that is wrong with it.
pub(crate) fn load(bytes: &[u8]) -> Result<Stored, Vec<Problem>> {
    let header = Header::parse(bytes)?;
    let problems = header.check_size(bytes.len() as u64);
    if !problems.is_empty() {
        return Err(problems);
    }
    decode(&header, &bytes[header.start..])
}

/// The elements in this machine's order, row-major. `data` is exactly as long as the header says.
fn decode(header: &Header, data: &[u8]) -> Result<Stored, Vec<Problem>> {
    if let Some(problem) = bad_bool(header.dtype, data) {
        return Err(vec![problem]);
    }
    let size = header.dtype.size();
    let little;
    let mut data = data;
    if header.big_endian && size > 1 {
        little = swapped(data, size);
        data = &little;
    }
    let row_major;
    if header.fortran && header.shape.rank() > 1 {
        row_major = match size {
            1 => transposed::<1>(data, &header.shape),
            2 => transposed::<2>(data, &header.shape),
            4 => transposed::<4>(data, &header.shape),
            _ => transposed::<8>(data, &header.shape),
        };
        data = &row_major;
    }
    let buffer = Buffer::from_le_bytes(header.dtype, data).expect("length and bools were checked");
    Ok(Stored { buffer, shape: header.shape.clone() })
}

/// Elements of `N` bytes from first-axis-fastest to last-axis-fastest order.
fn transposed<const N: usize>(data: &[u8], shape: &Shape) -> Vec<u8> {
    let (elements, _) = data.as_chunks::<N>();
    let mut out = Vec::with_capacity(data.len());
    if elements.is_empty() {
        return out;
    }
    let (last, outer) = shape.split_last().expect("the caller saw two axes or more");
    let inner_stride: usize = outer.iter().product();
    // The position in the outer axes, and the offset of its first element.
    let mut index = vec![0; outer.len()];
    let mut offset = 0;
    loop {
        for i in 0..*last {
            out.extend_from_slice(&elements[offset + i * inner_stride]);
        }
        let mut axis = outer.len();
        loop {
            if axis == 0 {
                return out;
            }
            axis -= 1;
            let stride: usize = outer[..axis].iter().product();
            index[axis] += 1;
            offset += stride;
            if index[axis] < outer[axis] {
                break;
            }
            offset -= stride * outer[axis];
            index[axis] = 0;
        }
    }
}

fn invalid(path: Option<&Path>, problems: Vec<Problem>) -> FormatError {
    FormatError::Invalid { path: path.map(Path::to_owned), format: Format::Npy, problems }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::error::Part;
    use crate::samples::{assert_same, damage, problems, tensors};

    /// A file as NumPy 2.4.6 writes it: `start`, the dict padded with spaces to 128 bytes and ended by
    /// a newline, the elements.
    fn file(start: &[u8], dict: &str, data: &[u8]) -> Vec<u8> {
        let mut out = [start, dict.as_bytes()].concat();
        out.resize(127, b' ');
        [&out[..], b"\n", data].concat()
    }

    const V1: &[u8] = b"\x93NUMPY\x01\x00v\x00";

    #[test]
    fn files_of_numpy_are_read_and_written_byte_for_byte() {
        // np.save(f, np.arange(6, dtype='<f4').reshape(2, 3))
        let dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
        let bytes = file(V1, dict, b"\0\0\0\0\0\0\x80?\0\0\0@\0\0@@\0\0\x80@\0\0\xa0@");
        let t = parse(&bytes).unwrap();
        assert_eq!(t.shape, Shape::from([2, 3]));
        assert_eq!(t.buffer.as_slice::<f32>(), [0., 1., 2., 3., 4., 5.]);
        assert_eq!(encode(&t).unwrap(), bytes);

        // np.save(f, np.array(True))
        let bytes = file(V1, "{'descr': '|b1', 'fortran_order': False, 'shape': (), }", b"\x01");
        let t = parse(&bytes).unwrap();
        assert_eq!((t.shape.rank(), t.buffer.as_slice::<bool>()), (0, &[true][..]));
        assert_eq!(encode(&t).unwrap(), bytes);

        // np.save(f, np.zeros((0, 3), dtype='u4'))
        let bytes = file(V1, "{'descr': '<u4', 'fortran_order': False, 'shape': (0, 3), }", b"");
        let t = parse(&bytes).unwrap();
        assert_eq!((t.shape.clone(), t.buffer.as_slice::<u32>()), (Shape::from([0, 3]), &[][..]));
        assert_eq!(encode(&t).unwrap(), bytes);
    }

    #[test]
    fn versions_two_and_three_of_numpy_are_read() {
        // np.lib.format.write_array(f, np.array([1, -1], dtype='<i8'), version=(2, 0))
        let dict = "{'descr': '<i8', 'fortran_order': False, 'shape': (2,), }";
        let data = [1i64.to_le_bytes(), (-1i64).to_le_bytes()].concat();
        let t = parse(&file(b"\x93NUMPY\x02\x00t\x00\x00\x00", dict, &data)).unwrap();
        assert_eq!(t.buffer.as_slice::<i64>(), [1, -1]);
        // np.lib.format.write_array(f, np.array([0.5, -2], dtype='<f2'), version=(3, 0))
        let dict = "{'descr': '<f2', 'fortran_order': False, 'shape': (2,), }";
        let t = parse(&file(b"\x93NUMPY\x03\x00t\x00\x00\x00", dict, b"\x008\x00\xc0")).unwrap();
        let values: Vec<f32> =
            t.buffer.as_slice::<thalweg_core::dtype::f16>().iter().map(|v| v.to_f32()).collect();
        assert_eq!(values, [0.5, -2.0]);
    }

    #[test]
    fn big_endian_fortran_order_becomes_row_major() {
        // np.save(f, np.asfortranarray(np.arange(6, dtype='>i2').reshape(2, 3)))
        let dict = "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 3), }";
        let t = parse(&file(V1, dict, b"\x00\x00\x00\x03\x00\x01\x00\x04\x00\x02\x00\x05")).unwrap();
        assert_eq!(t.buffer.as_slice::<i16>(), [0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn transposing_follows_the_index_formula_in_five_axes() {
        let shape = Shape::from([2, 3, 1, 4, 2]);
        let data: Vec<u8> = (0..48).collect();
        let out = transposed::<1>(&data, &shape);
        for (i, &v) in out.iter().enumerate() {
            let (mut rest, mut at, mut stride) = (i, 0, 48);
            for &d in shape.iter().rev() {
                stride /= d;
                at += (rest % d) * stride;
                rest /= d;
            }
            assert_eq!(v, data[at]);
        }
        assert!(transposed::<4>(&[], &Shape::from([2, 0, 3])).is_empty());
    }

    #[test]
    fn every_dtype_and_shape_comes_back() {
        for t in tensors() {
            if t.buffer.dtype() == DType::BF16 {
                let found = problems(encode(&t));
                assert!(
                    matches!(&found[..], [Problem::DType { advice, .. }] if advice.contains("safetensors"))
                );
                continue;
            }
            assert_same(&parse(&encode(&t).unwrap()).unwrap(), &t);
        }
    }

    #[test]
    fn files_are_read_and_lent() {
        let path = std::env::temp_dir().join(format!("thalweg-npy-{}.npy", std::process::id()));
        let t = Stored { buffer: Buffer::from_slice(&[1.5f64, -2.0]), shape: Shape::from([2]) };
        write(&path, &t).unwrap();
        assert_same(&read(&path).unwrap(), &t);
        assert!(read(&path).unwrap().buffer.is_unique());
        let lent = open(&path).unwrap();
        assert_same(&lent, &t);
        assert!(!lent.buffer.is_unique(), "a mapped buffer is not for writing");

        let dict = "{'descr': '>f8', 'fortran_order': False, 'shape': (1,), }";
        fs::write(&path, file(V1, dict, &2.5f64.to_be_bytes())).unwrap();
        assert_eq!(open(&path).unwrap().buffer.as_slice::<f64>(), [2.5]);

        fs::write(&path, file(V1, dict, &[0; 3])).unwrap();
        let err = open(&path).unwrap_err().to_string();
        assert!(
            err.contains(path.to_str().unwrap()) && err.contains("needs 8 bytes and 3 are there"),
            "{err}"
        );
        fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_changed_or_cut_file_never_panics() {
        let t = Stored { buffer: Buffer::from_slice(&[true, false, true]), shape: Shape::from([3]) };
        damage(&encode(&t).unwrap(), parse);
        let dict = "{'descr': '>i4', 'fortran_order': True, 'shape': (2, 1), }";
        damage(&file(b"\x93NUMPY\x03\x00t\x00\x00\x00", dict, &[7; 8]), parse);
    }

    #[test]
    fn a_header_that_claims_ten_gigabytes_fails_at_once() {
        let dict = "{'descr': '<f4', 'fortran_order': True, 'shape': (50000, 50000), }";
        let start = Instant::now();
        let want = Problem::Truncated { part: Part::Data, need: 10_000_000_000, have: 4 };
        assert_eq!(problems(parse(&file(V1, dict, &[0; 4]))), [want]);
        assert!(start.elapsed() < Duration::from_millis(200));
    }

    #[test]
    fn each_fault_of_the_data_has_its_problem() {
        let dict = "{'descr': '|b1', 'fortran_order': False, 'shape': (2,), }";
        assert_eq!(problems(parse(&file(V1, dict, &[0, 2]))), [Problem::BadBool { index: 1, value: 2 }]);
        assert_eq!(problems(parse(&file(V1, dict, &[0, 1, 0]))), [Problem::Trailing { count: 1 }]);
    }
}
