//! Picking rows of a tensor without the thread pool, so that fetching threads leave it to the training step.

use thalweg_core::{Buffer, with_dtype};
use thalweg_tensor::Tensor;

use crate::draw::Draw;

/// The drawn rows (first axis), in order.
pub(crate) fn gather(t: &Tensor, draws: &[Draw]) -> Tensor {
    let t = t.contiguous();
    let row: usize = t.shape()[1..].iter().product();
    let mut out = Buffer::scratch(t.dtype(), draws.len() * row);
    with_dtype!(t.dtype(), T => {
        let from = t.as_slice::<T>().expect("made contiguous above");
        let to = out.as_mut_slice::<T>();
        for (k, draw) in draws.iter().enumerate() {
            to[k * row..(k + 1) * row].copy_from_slice(&from[draw.index * row..(draw.index + 1) * row]);
        }
    });
    Tensor::from_buffer(out, t.shape().with(0, draws.len()))
}
