//! Comparing a result with what is expected.

use thalweg_core::DType;
use thalweg_tensor::Tensor;

/// Equal shapes; floats within tolerance, where NaN equals NaN and infinities their like; everything
/// else exactly. At the positions in `either`, PyTorch in single precision disagrees with itself in
/// double precision, and any answer is accepted.
pub fn close(got: &Tensor, want: &Tensor, rtol: f64, atol: f64, either: &[usize]) -> Result<(), String> {
    if got.shape() != want.shape() {
        return Err(format!("shape {} instead of {}", got.shape(), want.shape()));
    }
    if !want.dtype().is_float() {
        if got.dtype().is_float() {
            return Err(format!("dtype {} instead of {}", got.dtype(), want.dtype()));
        }
        let (g, w) = (got.to_dtype(DType::I64).to_vec::<i64>(), want.to_dtype(DType::I64).to_vec::<i64>());
        return match g.iter().zip(&w).position(|(g, w)| g != w) {
            Some(i) => Err(format!("element {i} is {} instead of {}", g[i], w[i])),
            None => Ok(()),
        };
    }
    if got.dtype() != want.dtype() {
        return Err(format!("dtype {} instead of {}", got.dtype(), want.dtype()));
    }
    let (g, w) = (got.to_dtype(DType::F64).to_vec::<f64>(), want.to_dtype(DType::F64).to_vec::<f64>());
    for (i, (&g, &w)) in g.iter().zip(&w).enumerate() {
        let same =
            g == w || (g.is_nan() && w.is_nan()) || (g.is_finite() && (g - w).abs() <= atol + rtol * w.abs());
        if !same && !either.contains(&i) {
            return Err(format!("element {i} is {g:e} instead of {w:e} (rtol {rtol:e}, atol {atol:e})"));
        }
    }
    Ok(())
}
