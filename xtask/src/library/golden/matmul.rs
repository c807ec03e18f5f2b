//! How the cases of the family `matmul` are called.

use thalweg_tensor::{AddmmOptions, Tensor};

use super::Call;

pub fn call(c: &Call<'_>) -> Option<Vec<Tensor>> {
    let x = c.x;
    let options =
        AddmmOptions { alpha: c.attrs.f64("alpha").unwrap_or(1.0), beta: c.attrs.f64("beta").unwrap_or(1.0) };
    Some(vec![match c.op {
        "matmul" => x[0].matmul(&x[1]),
        "linear" => x[0].linear(&x[1], x.get(2)),
        "bilinear" => x[0].bilinear(&x[1], &x[2], x.get(3)),
        "outer" => x[0].outer(&x[1]),
        "addmm" => x[0].addmm(&x[1], &x[2], options),
        "baddbmm" => x[0].baddbmm(&x[1], &x[2], options),
        "tensordot" => {
            let axes = |i: usize| -> Option<Vec<i64>> {
                c.attrs.raw("dims")?[i].as_array()?.iter().map(|v| v.as_i64()).collect()
            };
            x[0].tensordot(&x[1], axes(0)?, axes(1)?)
        }
        "kron" => x[0].kron(&x[1]),
        "einsum" => Tensor::einsum(c.attrs.str("equation")?, &x.iter().collect::<Vec<_>>()),
        _ => return None,
    }])
}
