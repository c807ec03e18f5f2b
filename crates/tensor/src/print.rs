//! Printing as NumPy does: aligned columns, few digits, and the middle left out of large tensors.

use std::fmt;

use thalweg_core::{DType, Element, with_dtype};

use crate::tensor::Tensor;

/// Larger tensors are summarised.
const SUMMARISE_ABOVE: usize = 1000;
/// How many entries of each axis a summary shows at either end.
const EDGE: usize = 3;
/// Digits after the point, unless the user asks for others by `{:.2}`.
const DIGITS: usize = 4;

impl fmt::Display for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_traced() {
            return write!(f, "traced {}", self.meta());
        }
        let summarised = self.numel() > SUMMARISE_ABOVE;
        let cells = self.cells(summarised, f.precision());
        let width = cells.iter().map(String::len).max().unwrap_or(0);
        let mut cells = cells.into_iter();
        write_axis(f, &self.shape()[..], 0, summarised, &mut cells, width)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tracked = if self.is_tracked() { ", tracked" } else { "" };
        write!(f, "Tensor({}{tracked}\n{self})", self.meta())
    }
}

impl Tensor {
    /// The text of every element that is shown, in row-major order.
    fn cells(&self, summarised: bool, precision: Option<usize>) -> Vec<String> {
        let mut shown = self.stop_gradient();
        if summarised {
            for axis in 0..self.rank() {
                let size = shown.shape()[axis];
                if size > 2 * EDGE {
                    let axis = axis as isize;
                    shown = Tensor::concat(
                        &[&shown.narrow(axis, 0, EDGE), &shown.narrow(axis, size - EDGE, EDGE)],
                        axis,
                    );
                }
            }
        }
        if self.dtype().is_float() {
            return with_dtype!(self.dtype(), T => {
                float_cells(&shown.to_vec::<T>().iter().map(|v| v.to_f64()).collect::<Vec<_>>(), precision)
            });
        }
        if self.dtype() == DType::Bool {
            return shown.to_vec::<bool>().iter().map(bool::to_string).collect();
        }
        with_dtype!(self.dtype(), T => shown.to_vec::<T>().iter().map(|v| v.to_i64().to_string()).collect())
    }
}

/// One format for all: whole numbers as `1.`, others with as many digits as any of them needs, in
/// powers of ten when plain digits would hide the small or swamp the large ones.
fn float_cells(values: &[f64], precision: Option<usize>) -> Vec<String> {
    let finite = || values.iter().map(|v| v.abs()).filter(|v| v.is_finite() && *v > 0.0);
    let (largest, smallest) = (finite().fold(0.0, f64::max), finite().fold(f64::INFINITY, f64::min));
    let scientific = largest >= 1e8 || (largest > 0.0 && (smallest < 1e-4 || largest / smallest > 1e6));
    let plain = |v: f64, digits: usize| {
        let text = format!("{v:.digits$}");
        let trimmed = text.trim_end_matches('0');
        trimmed.len() - trimmed.find('.').map_or(trimmed.len(), |p| p + 1)
    };
    let needed = match precision {
        Some(digits) => digits,
        None => values.iter().filter(|v| v.is_finite()).map(|&v| plain(v, DIGITS)).max().unwrap_or(0),
    };
    let cell = |&v: &f64| match v {
        v if v.is_nan() => "nan".to_owned(),
        v if v.is_infinite() => if v > 0.0 { "inf" } else { "-inf" }.to_owned(),
        v if scientific => format!("{v:.*e}", precision.unwrap_or(DIGITS)),
        v if needed == 0 && precision.is_none() => format!("{v:.0}."),
        v => format!("{v:.needed$}"),
    };
    values.iter().map(cell).collect()
}

fn write_axis(
    f: &mut fmt::Formatter<'_>,
    shape: &[usize],
    depth: usize,
    summarised: bool,
    cells: &mut impl Iterator<Item = String>,
    width: usize,
) -> fmt::Result {
    let Some((&size, inner)) = shape.split_first() else {
        return write!(f, "{:>width$}", cells.next().unwrap_or_default());
    };
    if shape.contains(&0) {
        return f.write_str("[]");
    }
    let cut = summarised && size > 2 * EDGE;
    let shown = if cut { 2 * EDGE } else { size };
    // Between rows: a line break, one more blank line per deeper axis, and the indent of the bracket.
    let gap = |f: &mut fmt::Formatter<'_>| match inner.len() {
        0 => f.write_str(" "),
        n => write!(f, "{}{:indent$}", "\n".repeat(n), "", indent = depth + 1),
    };
    f.write_str("[")?;
    for i in 0..shown {
        if i > 0 {
            f.write_str(",")?;
            gap(f)?;
        }
        if cut && i == EDGE {
            f.write_str("...,")?;
            gap(f)?;
        }
        write_axis(f, inner, depth + 1, summarised, cells, width)?;
    }
    f.write_str("]")
}

#[cfg(test)]
mod tests {
    use super::*;

    // Expected texts follow `print(numpy.array(...))` of NumPy 2, with commas as in `repr`.
    #[test]
    fn small_tensors_print_in_aligned_columns() {
        assert_eq!(Tensor::from([[1.0f32, 2.5], [-3.0, 10.0]]).to_string(), "[[ 1.0,  2.5],\n [-3.0, 10.0]]");
        assert_eq!(Tensor::from([1.0f32, 2.0]).to_string(), "[1., 2.]");
        assert_eq!(Tensor::from([[1i64, -20]]).to_string(), "[[  1, -20]]");
        assert_eq!(Tensor::from([true, false]).to_string(), "[ true, false]");
        assert_eq!(Tensor::scalar(3.5).to_string(), "3.5");
        assert_eq!(Tensor::zeros([2, 0], DType::F32).to_string(), "[]");
        assert_eq!(
            Tensor::from([[[1i64], [2]], [[3], [4]]]).to_string(),
            "[[[1],\n  [2]],\n\n [[3],\n  [4]]]"
        );
    }

    #[test]
    fn extreme_values_stay_readable() {
        assert_eq!(Tensor::from([1e-9f32, 1.0]).to_string(), "[1.0000e-9,  1.0000e0]");
        assert_eq!(Tensor::from([f32::NAN, f32::INFINITY, 1.0]).to_string(), "[nan, inf,  1.]");
        assert_eq!(format!("{:.2}", Tensor::from([0.123456f32])), "[0.12]");
    }

    #[test]
    fn large_tensors_show_their_corners() {
        let text = Tensor::arange(10_000).reshape([100, 100]).to_string();
        assert_eq!(text.lines().count(), 7, "{text}");
        assert!(text.starts_with("[[   0,    1,    2, ...,   97,   98,   99],"), "{text}");
        assert!(text.ends_with("[9900, 9901, 9902, ..., 9997, 9998, 9999]]"), "{text}");
    }
}
