//! One step of training: gradient and update.

use std::cell::RefCell;

use thalweg_core::DType;
use thalweg_nn::{Average, Module, Optimizer, Rule, autocast};
use thalweg_runtime::Tree;
use thalweg_tensor::Tensor;

/// How gradients come about.
#[derive(Debug, Clone, Copy)]
pub(super) struct How {
    /// Parts of a batch, one after the other.
    pub parts: usize,
    /// The dtype of products.
    pub precision: Option<DType>,
}

/// The function that is compiled. Returns the loss.
pub(super) fn step<'a, N: Module, R: Rule, B: Tree>(
    net: &'a N,
    optimizer: &'a RefCell<Optimizer<R>>,
    average: Option<&'a RefCell<Average>>,
    loss: &'a impl Fn(&N, B) -> Tensor,
    how: How,
) -> impl Fn(B) -> Tensor + Copy + 'a {
    let loss = move |batch: B| match how.precision {
        Some(dtype) => autocast(dtype, || loss(net, batch)).to_dtype(DType::F32),
        None => loss(net, batch),
    };
    move |batch: B| {
        let total = if how.parts == 1 {
            let total = loss(batch);
            optimizer.borrow_mut().step(net, &total);
            total
        } else {
            let (total, gradients) = in_parts(net, batch, how.parts, &loss);
            optimizer.borrow_mut().step_with(net, &gradients);
            total
        };
        if let Some(average) = average {
            average.borrow_mut().update(net);
        }
        total
    }
}

/// Loss and gradients of a batch that is cut into parts: each counts by its number of samples, so that the sum is the
/// mean over the batch.
#[track_caller]
fn in_parts<B: Tree>(
    net: &impl Module,
    batch: B,
    parts: usize,
    loss: &impl Fn(B) -> Tensor,
) -> (Tensor, Vec<Tensor>) {
    let mut samples = 0;
    batch.visit(&mut |t| samples = t.size(0));
    let parts = parts.min(samples).max(1);
    let params = net.trainable();
    let params: Vec<_> = params.iter().collect();
    let piece = |i: usize| {
        let (from, to) = (samples * i / parts, samples * (i + 1) / parts);
        let loss =
            loss(batch.map(&mut |t| t.narrow(0, from, to - from))) * ((to - from) as f64 / samples as f64);
        let gradients = loss.grad(&params);
        (loss.stop_gradient(), gradients)
    };
    let add = |(loss, sums): (Tensor, Vec<Tensor>), (more, gradients): (Tensor, Vec<Tensor>)| {
        (loss + more, sums.into_iter().zip(gradients).map(|(s, g)| s + g).collect())
    };
    (0..parts).map(piece).reduce(add).expect("there is at least one part")
}
