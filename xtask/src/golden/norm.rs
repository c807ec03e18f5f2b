//! How the cases of the family `norm` are called.

use thalweg_tensor::Tensor;

use super::Call;

pub fn call(c: &Call<'_>) -> Option<Vec<Tensor>> {
    let _ = (c.op, c.x, c.names, c.attrs);
    None
}
