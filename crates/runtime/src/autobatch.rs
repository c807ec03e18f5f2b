//! `autobatch`: many small instances of different structure, computed in batches.

use thalweg_graph::{Traced, batch};
use thalweg_tensor::{OpError, Param, Tensor, no_grad, trace};

use crate::tree::Tree;

/// Runs `f` and computes what it does in batches: the ops of many small instances, each of a structure
/// of its own (trees, sequences, graphs), become few ops on stacked values. Written as for one
/// instance at a time; nothing is padded.
///
/// Inside, tensors that depend on parameters have no values yet, so that `f` may decide by its data
/// but not by what it computes. Gradients may be asked of the result, which costs least: they follow the
/// batched ops back. Asked for inside, they are batched op by op as well. Parameters that `f` sets have
/// their new values afterwards. Inside `jit`, `f` is traced as it is.
///
/// ```
/// use thalweg_runtime::autobatch;
/// use thalweg_tensor::{Param, Tensor};
/// let w = Param::new("w", Tensor::from([[0.5f32]]));
/// // Sequences of different lengths.
/// let data: Vec<Vec<f64>> = vec![vec![1.0, 2.0], vec![3.0], vec![4.0, 5.0, 6.0]];
/// let loss = autobatch(|| {
///     let run = |xs: &Vec<f64>| {
///         xs.iter().fold(Tensor::zeros([1, 1], w.meta().dtype), |h, &x| (h + x).matmul(&w.get()))
///     };
///     data.iter().map(run).reduce(|a, b| a + b).unwrap().sum(())
/// })?;
/// assert_eq!(loss.item::<f32>(), 1.25 + 1.5 + 4.75);
/// assert!(loss.grad(&[&w])[0].item::<f32>() > 0.0);
/// # Ok::<(), thalweg_tensor::OpError>(())
/// ```
#[track_caller]
pub fn autobatch<R: Tree>(f: impl FnOnce() -> R) -> Result<R, OpError> {
    if trace::is_recording() {
        return Ok(f());
    }
    let mut shape = None;
    let traced = Traced::record(&[], |_| {
        let result = f();
        let mut tensors = Vec::new();
        result.visit(&mut |t| tensors.push(t.clone()));
        shape = Some(result.map(&mut |t| Tensor::scalar(0).to_dtype(t.dtype()).broadcast_to(t.shape())));
        tensors
    });
    let graph = batch(traced.graph)?;
    let params: Vec<Tensor> = traced.params.iter().map(Param::get).collect();
    let values = match graph.writes.is_empty() {
        true => graph.values(&[], &params, &traced.captured),
        // What is stored is no longer a function of anything.
        false => no_grad(|| graph.values(&[], &params, &traced.captured)),
    }?;
    for &(param, id) in &graph.writes {
        traced.params[param].set(values[id.index()].clone());
    }
    let mut results = graph.outputs.iter().map(|(_, id)| values[id.index()].clone());
    let shape = shape.expect("the function was traced");
    Ok(shape.map(&mut |_| results.next().expect("one result per tensor")))
}
