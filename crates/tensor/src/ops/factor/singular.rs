//! Singular values by one-sided Jacobi rotations: columns are turned until all are orthogonal; their
//! lengths are then the singular values, small ones to full relative accuracy.

use super::symmetric::{identity, rotation, sign_of_largest};

/// A = U diag(s) Vᵀ with k = min(m, n) columns.
pub(crate) struct Svd {
    /// (m, k)
    pub u: Vec<f64>,
    /// (k), descending.
    pub s: Vec<f64>,
    /// (n, k)
    pub v: Vec<f64>,
}

/// The thin decomposition; the largest component of each column of U is positive. `None` when there is NaN or
/// infinity. a: (m, n).
pub(crate) fn svd(a: &[f64], m: usize, n: usize) -> Option<Svd> {
    if a.iter().any(|v| !v.is_finite()) {
        return None;
    }
    let transposed: Vec<f64> = (0..m * n).map(|i| a[i % m * n + i / m]).collect();
    if m < n {
        let Svd { u, s, v } = tall(a, n, m);
        return Some(with_signs(Svd { u: v, s, v: u }, m, n));
    }
    Some(with_signs(tall(&transposed, m, n), m, n))
}

/// Of the matrix whose n ≤ m columns, m long, are the rows of `columns`.
fn tall(columns: &[f64], m: usize, n: usize) -> Svd {
    let (mut b, mut v) = (columns.to_vec(), identity(n));
    for _ in 0..64 {
        let mut turned = false;
        for p in 0..n {
            for q in p + 1..n {
                turned |= orthogonalise(&mut b, &mut v, m, n, p, q);
            }
        }
        if !turned {
            break;
        }
    }
    let length = |i: usize| b[i * m..(i + 1) * m].iter().fold(0.0, |l: f64, x| l.hypot(*x));
    let lengths: Vec<f64> = (0..n).map(length).collect();
    let mut order: Vec<usize> = (0..n).collect();
    order.sort_by(|&i, &j| lengths[j].total_cmp(&lengths[i]));
    let s: Vec<f64> = order.iter().map(|&i| lengths[i]).collect();
    // (n, m): the columns of U as rows, completed where a singular value is zero.
    let mut rows: Vec<Vec<f64>> = Vec::new();
    for &i in &order {
        let column = &b[i * m..(i + 1) * m];
        let unit = match lengths[i] > 0.0 {
            true => column.iter().map(|x| x / lengths[i]).collect(),
            false => orthogonal_to(&rows, m),
        };
        rows.push(unit);
    }
    let u = (0..m * n).map(|i| rows[i % n][i / n]).collect();
    // Row i of `v` is the i-th right singular vector: rotations were applied to rows.
    let v = (0..n * n).map(|i| v[order[i % n] * n + i / n]).collect();
    Svd { u, s, v }
}

/// Turns columns p and q so that they are orthogonal; whether that was needed.
fn orthogonalise(b: &mut [f64], v: &mut [f64], m: usize, n: usize, p: usize, q: usize) -> bool {
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    let (head, tail) = b.split_at_mut(q * m);
    let (bp, bq) = (&mut head[p * m..(p + 1) * m], &mut tail[..m]);
    let (alpha, beta, gamma) = (dot(bp, bp), dot(bq, bq), dot(bp, bq));
    if gamma == 0.0 || gamma.abs() <= 1e-17 * (alpha * beta).sqrt() {
        return false;
    }
    let (c, s) = rotation(alpha, beta, gamma);
    let turn = |x: &mut [f64], y: &mut [f64]| {
        x.iter_mut().zip(y).for_each(|(x, y)| (*x, *y) = (c * *x - s * *y, s * *x + c * *y));
    };
    turn(bp, bq);
    let (head, tail) = v.split_at_mut(q * n);
    turn(&mut head[p * n..(p + 1) * n], &mut tail[..n]);
    true
}

/// A unit vector orthogonal to unit vectors that are orthogonal to each other, fewer than m.
fn orthogonal_to(rows: &[Vec<f64>], m: usize) -> Vec<f64> {
    let candidate = |axis: usize| {
        let mut x: Vec<f64> = (0..m).map(|i| if i == axis { 1.0 } else { 0.0 }).collect();
        // Twice, as the first pass leaves rounding errors along the rows.
        for row in rows.iter().chain(rows) {
            let along: f64 = x.iter().zip(row).map(|(x, r)| x * r).sum();
            x.iter_mut().zip(row).for_each(|(x, r)| *x -= along * r);
        }
        x
    };
    let length = |x: &Vec<f64>| x.iter().map(|v| v * v).sum::<f64>().sqrt();
    let best = (0..m).map(candidate).max_by(|a, b| length(a).total_cmp(&length(b)));
    let best = best.expect("there is a row fewer than m at least");
    let by = length(&best);
    best.iter().map(|x| x / by).collect()
}

fn with_signs(mut svd: Svd, m: usize, n: usize) -> Svd {
    let k = svd.s.len();
    for col in 0..k {
        let sign = sign_of_largest((0..m).map(|row| svd.u[row * k + col]));
        (0..m).for_each(|row| svd.u[row * k + col] *= sign);
        (0..n).for_each(|row| svd.v[row * k + col] *= sign);
    }
    svd
}
