//! Eigenvalues and eigenvectors of symmetric matrices by Jacobi rotations.
//!
//! Each rotation makes one off-diagonal pair zero; sweeps over all pairs converge quadratically. Slower than
//! tridiagonalisation for large matrices, and as accurate as the entries allow (Golub and Van Loan, 8.5).

/// Ascending eigenvalues and the eigenvectors as columns, the largest component of each positive.
/// `None` when there is NaN or infinity. a: (n, n), symmetric.
pub(crate) fn eigh(a: &[f64], n: usize) -> Option<(Vec<f64>, Vec<f64>)> {
    if a.iter().any(|v| !v.is_finite()) {
        return None;
    }
    let (mut a, mut v) = (a.to_vec(), identity(n));
    // Ten sweeps suffice in practice; the bound only stops a sweep that rounding keeps alive.
    for _ in 0..64 {
        let scale: f64 = a.iter().map(|x| x * x).sum();
        let off: f64 = (0..n * n).filter(|i| i / n != i % n).map(|i| a[i] * a[i]).sum();
        if off <= 1e-34 * scale || off == 0.0 {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                rotate(&mut a, &mut v, n, p, q);
            }
        }
    }
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| a[i * n + i].total_cmp(&a[j * n + j]));
    let values = order.iter().map(|&i| a[i * n + i]).collect();
    let signs: Vec<f64> = order.iter().map(|&i| sign_of_largest((0..n).map(|row| v[row * n + i]))).collect();
    let vectors = (0..n * n).map(|i| v[i / n * n + order[i % n]] * signs[i % n]).collect();
    Some((values, vectors))
}

/// The sign of the element of largest magnitude; 1 for none.
pub(crate) fn sign_of_largest(x: impl Iterator<Item = f64>) -> f64 {
    let largest = x.fold(0.0f64, |m, v| if v.abs() > m.abs() { v } else { m });
    if largest < 0.0 { -1.0 } else { 1.0 }
}

pub(crate) fn identity(n: usize) -> Vec<f64> {
    (0..n * n).map(|i| if i / n == i % n { 1.0 } else { 0.0 }).collect()
}

/// The rotation (cos, sin) that makes the pair of a symmetric 2×2 matrix [[α, γ], [γ, β]] zero.
pub(crate) fn rotation(alpha: f64, beta: f64, gamma: f64) -> (f64, f64) {
    let zeta = (beta - alpha) / (2.0 * gamma);
    let t = zeta.signum() / (zeta.abs() + zeta.hypot(1.0));
    let c = 1.0 / t.hypot(1.0);
    (c, c * t)
}

fn rotate(a: &mut [f64], v: &mut [f64], n: usize, p: usize, q: usize) {
    if a[p * n + q] == 0.0 {
        return;
    }
    let (c, s) = rotation(a[p * n + p], a[q * n + q], a[p * n + q]);
    for k in 0..n {
        let (x, y) = (a[k * n + p], a[k * n + q]);
        (a[k * n + p], a[k * n + q]) = (c * x - s * y, s * x + c * y);
    }
    for k in 0..n {
        let (x, y) = (a[p * n + k], a[q * n + k]);
        (a[p * n + k], a[q * n + k]) = (c * x - s * y, s * x + c * y);
    }
    for k in 0..n {
        let (x, y) = (v[k * n + p], v[k * n + q]);
        (v[k * n + p], v[k * n + q]) = (c * x - s * y, s * x + c * y);
    }
    (a[p * n + q], a[q * n + p]) = (0.0, 0.0);
}
