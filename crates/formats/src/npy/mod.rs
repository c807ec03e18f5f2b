//! One NumPy array per file.
//!
//! Reads versions 1.0 to 3.0, both byte orders, C and Fortran order; gives row-major tensors. Writes
//! version 1.0 in C order, little-endian, as `numpy.save` does. Refuses what is no plain number: bf16
//! has no npy dtype (save it as f32, or use safetensors), and object arrays are pickles.

mod header;

use std::io::{self, Write};
use std::path::Path;

use thalweg_core::{Buffer, DType, Shape};

use crate::error::{Format, FormatError, Part, Problem};
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

/// The bytes that [`write`] would put into a file.
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
