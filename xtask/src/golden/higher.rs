//! Derivatives of derivatives, forward mode, and per-example gradients.

use thalweg_tensor::Tensor;

use super::Call;

pub fn call(c: &Call<'_>) -> Option<Vec<Tensor>> {
    let _ = (c.op, c.x, c.names, c.attrs);
    None
}
