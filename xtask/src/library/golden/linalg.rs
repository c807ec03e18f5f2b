//! How the cases of the family `linalg` are called. Complex results are pairs in a last axis.

use thalweg_tensor::ops::Side;
use thalweg_tensor::{MatrixNorm, Tensor};

use super::Call;

pub fn call(c: &Call<'_>) -> Option<Vec<Tensor>> {
    let x = &c.x[0];
    Some(vec![match c.op {
        "cholesky" => x.cholesky(),
        "inv" => x.inv(),
        "det" => x.det(),
        "slogdet" => {
            let (sign, log) = x.slogdet();
            return Some(vec![sign, log]);
        }
        "solve" => x.solve(&c.x[1]),
        "solve_triangular" => x.solve_triangular(&c.x[1], Side::Lower),
        "eigvalsh" => x.eigvalsh(),
        "svdvals" => x.svdvals(),
        "matrix_power" => x.matrix_power(c.attrs.int("n")? as i32),
        "matrix_norm" => x.matrix_norm(MatrixNorm::Frobenius),
        "cross" => x.cross(&c.x[1], -1),
        "rfft" => x.rfft(),
        "fft" => x.real_to_pairs().fft(),
        _ => return None,
    }])
}
