//! Tensors and damage for the tests of every format.

use thalweg_core::{Buffer, DType, Shape};

use crate::error::{FormatError, Problem};
use crate::stored::Stored;

/// Every dtype in several shapes: scalar, empty, one axis, five axes.
pub(crate) fn tensors() -> Vec<Stored> {
    let shapes = [vec![], vec![0], vec![3], vec![2, 0, 4], vec![2, 3, 2, 1, 2]];
    let all = DType::ALL.into_iter().flat_map(|d| shapes.iter().map(move |s| (d, Shape::from(s))));
    all.map(|(dtype, shape)| {
        let top = if dtype == DType::Bool { 2 } else { 251 };
        let bytes: Vec<u8> = (0..shape.numel() * dtype.size()).map(|i| ((i * 37 + 1) % top) as u8).collect();
        Stored { buffer: Buffer::from_le_bytes(dtype, &bytes).unwrap(), shape }
    })
    .collect()
}

pub(crate) fn assert_same(a: &Stored, b: &Stored) {
    assert_eq!((a.buffer.dtype(), &a.shape), (b.buffer.dtype(), &b.shape));
    assert_eq!(a.buffer.bytes(), b.buffer.bytes());
}

/// What a file was refused for.
pub(crate) fn problems<T>(result: Result<T, FormatError>) -> Vec<Problem> {
    match result {
        Err(e @ (FormatError::Invalid { .. } | FormatError::Refused { .. })) => {
            assert!(!e.to_string().is_empty());
            let (FormatError::Invalid { problems, .. } | FormatError::Refused { problems, .. }) = e else {
                unreachable!("matched above")
            };
            assert!(!problems.is_empty());
            problems
        }
        Err(other) => panic!("another error: {other}"),
        Ok(_) => panic!("no error"),
    }
}

/// Gives `check` the file with each byte changed in several ways, and then cut short at each length,
/// which must be an error.
pub(crate) fn damage<T>(file: &[u8], check: impl Fn(&[u8]) -> Result<T, FormatError>) {
    check(file).unwrap_or_else(|e| panic!("{e}"));
    let mut copy = file.to_vec();
    for at in 0..file.len() {
        for change in [1, 2, 4, 8, 16, 32, 64, 128, 255] {
            copy[at] = file[at] ^ change;
            drop(check(&copy));
        }
        for value in [0, 255, b'0', b'9', b'"', b'{', b' '] {
            copy[at] = value;
            drop(check(&copy));
        }
        copy[at] = file[at];
    }
    for end in 0..file.len() {
        problems(check(&file[..end]));
    }
}
