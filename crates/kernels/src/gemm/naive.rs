//! The obvious twin of the matrix product: three loops. Slow, and the measure of all else.

use std::ops::{Add, Mul};

use super::MatRef;

/// `c (m×n) = a · b`, or `+=` if `accumulate`, as [`super::gemm_f32`], summed in the order of k.
pub fn gemm<T>(a: MatRef<T>, b: MatRef<T>, c: &mut [T], ldc: usize, accumulate: bool)
where
    T: Copy + Default + Add<Output = T> + Mul<Output = T>,
{
    assert_eq!(a.cols(), b.rows());
    for i in 0..a.rows() {
        for j in 0..b.cols() {
            let zero = if accumulate { c[i * ldc + j] } else { T::default() };
            c[i * ldc + j] = (0..a.cols()).fold(zero, |sum, p| sum + a.at(i, p) * b.at(p, j));
        }
    }
}
