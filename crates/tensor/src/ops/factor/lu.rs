//! P A = L U by Gaussian elimination with row pivots.

use crate::meta::Meta;
use crate::ops::Op;
use crate::ops::primitive::Cost;
use crate::ops::sample::{Draw, Sample};

/// L without its unit diagonal below, U on and above the diagonal.
pub(crate) struct Lu {
    n: usize,
    // (n, n)
    packed: Vec<f64>,
    /// Row i of `packed` was row `order[i]` of the matrix.
    order: Vec<usize>,
    odd: bool,
}

impl Lu {
    /// a: (n, n).
    pub fn new(a: &[f64], n: usize) -> Self {
        let (mut m, mut order, mut odd) = (a.to_vec(), (0..n).collect::<Vec<_>>(), false);
        for col in 0..n {
            let largest =
                |a: usize, b: usize| if m[b * n + col].abs() > m[a * n + col].abs() { b } else { a };
            let pivot = (col..n).reduce(largest).expect("col < n");
            if pivot != col {
                (0..n).for_each(|j| m.swap(pivot * n + j, col * n + j));
                order.swap(pivot, col);
                odd = !odd;
            }
            let diagonal = m[col * n + col];
            if diagonal == 0.0 {
                continue;
            }
            let (upper, lower) = m.split_at_mut((col + 1) * n);
            let row = &upper[col * n..];
            for other in lower.chunks_exact_mut(n) {
                let factor = other[col] / diagonal;
                other[col] = factor;
                other[col + 1..].iter_mut().zip(&row[col + 1..]).for_each(|(o, r)| *o -= factor * r);
            }
        }
        Self { n, packed: m, order, odd }
    }

    fn diagonal(&self) -> impl Iterator<Item = f64> + '_ {
        self.packed.iter().step_by(self.n + 1).copied()
    }

    /// Whether a pivot is exactly zero.
    pub fn is_singular(&self) -> bool {
        self.diagonal().any(|d| d == 0.0)
    }

    /// The determinant of the matrix.
    pub fn det(&self) -> f64 {
        self.diagonal().product::<f64>() * if self.odd { -1.0 } else { 1.0 }
    }

    /// The sign of the determinant (0 if singular) and the logarithm of its magnitude.
    pub fn sign_and_log_det(&self) -> (f64, f64) {
        let start = if self.odd { -1.0 } else { 1.0 };
        self.diagonal().fold((start, 0.0), |(sign, log), d| {
            (sign * if d == 0.0 { 0.0 } else { d.signum() }, log + d.abs().ln())
        })
    }

    /// A⁻¹ b for a matrix that is not singular. b: (n, cols).
    pub fn solve(&self, b: &[f64], cols: usize) -> Vec<f64> {
        let n = self.n;
        let mut x: Vec<f64> = self.order.iter().flat_map(|&row| &b[row * cols..][..cols]).copied().collect();
        for i in 0..n {
            let (above, rest) = x.split_at_mut(i * cols);
            for (j, row) in above.chunks_exact(cols.max(1)).enumerate() {
                let factor = self.packed[i * n + j];
                rest[..cols].iter_mut().zip(row).for_each(|(x, r)| *x -= factor * r);
            }
        }
        for i in (0..n).rev() {
            let (above, below) = x.split_at_mut((i + 1) * cols);
            let row = &mut above[i * cols..];
            for (j, other) in below.chunks_exact(cols.max(1)).enumerate() {
                let factor = self.packed[i * n + i + 1 + j];
                row.iter_mut().zip(other).for_each(|(x, r)| *x -= factor * r);
            }
            let diagonal = self.packed[i * n + i];
            row.iter_mut().for_each(|x| *x /= diagonal);
        }
        x
    }
}

/// The work of eliminating each matrix of the operand.
pub(crate) fn cost(x: &[&Meta], y: &Meta) -> Cost {
    let n = x[0].shape.last().copied().unwrap_or(1);
    Cost { flops: (x[0].numel() * n * 2 / 3) as u64, bytes: Cost::traffic(x, y) }
}

/// The calls that determinants are tried on.
pub(crate) fn samples(op: impl Into<Op> + Clone) -> Vec<Sample> {
    let draws =
        [Draw::definite(3), Draw::float([2, 1, 1], 1.0, 2.0), Draw::any([2, 0, 0]), Draw::distinct([2, 2])];
    draws.map(|draw| Sample::new(op.clone(), [draw])).into()
}
