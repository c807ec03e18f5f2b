//! Cholesky factors and triangular systems.

/// L with A = L Lᵀ, zero above the diagonal; `None` when A is not positive definite. Reads the lower
/// triangle. a: (n, n).
pub(crate) fn cholesky(a: &[f64], n: usize) -> Option<Vec<f64>> {
    let mut l = vec![0.0; n * n];
    for i in 0..n {
        for j in 0..=i {
            let dot: f64 = (0..j).map(|k| l[i * n + k] * l[j * n + k]).sum();
            let rest = a[i * n + j] - dot;
            if i != j {
                l[i * n + j] = rest / l[j * n + j];
            } else if rest > 0.0 {
                l[i * n + i] = rest.sqrt();
            } else {
                return None;
            }
        }
    }
    Some(l)
}

/// A⁻¹ b, where A is one triangle of `a`; `None` when its diagonal has a zero. a: (n, n), b: (n, cols).
pub(crate) fn solve(a: &[f64], n: usize, b: &[f64], cols: usize, upper: bool) -> Option<Vec<f64>> {
    if (0..n).any(|i| a[i * n + i] == 0.0) {
        return None;
    }
    let mut x = b.to_vec();
    for step in 0..n {
        let i = if upper { n - 1 - step } else { step };
        let known = if upper { i + 1..n } else { 0..i };
        for c in 0..cols {
            let dot: f64 = known.clone().map(|k| a[i * n + k] * x[k * cols + c]).sum();
            x[i * cols + c] = (x[i * cols + c] - dot) / a[i * n + i];
        }
    }
    Some(x)
}
