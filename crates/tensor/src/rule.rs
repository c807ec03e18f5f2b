//! A function with a backward of its own, as part of a trace.
//!
//! On the tape such a function is one node. A trace notes the ops of its forward, which is all that a compiled function runs; whoever
//! differentiates the graph must know that their gradients are not wanted but those of the backward. So the backward is traced
//! too, when the function is: what it finds around it may be values of traces that are over when somebody differentiates.
//! An op has one result, and a backward wants the gradients of all results at once, so there are two kinds of marks:
//! each float result is read through one that hands its gradient on to another that they share.

use std::panic::Location;
use std::sync::Arc;

use thalweg_core::DType;

use crate::error::or_fail;
use crate::meta::Meta;
use crate::param::Param;
use crate::tape;
use crate::tensor::Tensor;
use crate::trace::{self, Recording, Source};

/// The backward of a function. The value that stands for it has as operands those of the function, its float results, and what
/// the backward found around it.
pub struct Rule {
    /// From the gradients of the float results and these results to gradients of operands. What was captured and the parameters
    /// are, in the order of its values, what it found.
    pub recording: Recording,
    /// Dtypes and shapes of the float results.
    pub results: Vec<Meta>,
    /// Which operands get a gradient: one result of the recording each.
    pub reaches: Vec<bool>,
}

impl Rule {
    /// Gradients travel end to end in one vector: of their dtype, or as f64 if they have several.
    pub fn packed(results: &[Meta]) -> Meta {
        let first = results.first().map_or(DType::F32, |m| m.dtype);
        let dtype = if results.iter().all(|m| m.dtype == first) { first } else { DType::F64 };
        Meta::new(dtype, [results.iter().map(Meta::numel).sum::<usize>()])
    }
}

/// A backward as users write it: operands, results and gradients of results to gradients of operands.
type UserBackward<'a> = &'a dyn Fn(&[Tensor], &[Tensor], &[Tensor]) -> Vec<Option<Tensor>>;

/// The results of a function, marked with its backward if they are part of a trace.
pub(crate) fn noted(
    inputs: &[Tensor],
    outputs: Vec<Tensor>,
    backward: UserBackward<'_>,
    at: &'static Location<'static>,
) -> Vec<Tensor> {
    let floats: Vec<usize> = (0..outputs.len()).filter(|&i| outputs[i].dtype().is_float()).collect();
    let is_traced = inputs.iter().chain(&outputs).any(Tensor::is_traced);
    if !is_traced || !trace::is_recording() || floats.is_empty() || !tape::records(0) {
        return outputs;
    }
    let rule = Arc::new(traced(inputs, &outputs, &floats, backward));
    let found = rule.recording.values.iter().filter_map(|value| match &value.source {
        Source::Captured(t) => Some(t.clone()),
        Source::Param(param) => Some(param.get()),
        _ => None,
    });
    let found: Vec<Tensor> = found.collect();
    let results = floats.iter().map(|&i| &outputs[i]);
    let operands: Vec<&Tensor> = inputs.iter().chain(results).chain(&found).collect();
    let meta = Rule::packed(&rule.results);
    let shared = or_fail(trace::note_as("custom_vjp", &operands, meta, at, |operands| {
        Source::Rule(Arc::clone(&rule), operands)
    }));
    let mut marked = outputs.clone();
    for (k, &i) in floats.iter().enumerate() {
        let meta = outputs[i].meta().clone();
        let source =
            |pair: smallvec::SmallVec<[u32; 4]>| Source::Ruled(Arc::clone(&rule), k, [pair[0], pair[1]]);
        marked[i] = or_fail(trace::note_as("custom_vjp", &[&outputs[i], &shared], meta, at, source));
    }
    marked
}

fn traced(inputs: &[Tensor], outputs: &[Tensor], floats: &[usize], backward: UserBackward<'_>) -> Rule {
    let results: Vec<Meta> = floats.iter().map(|&i| outputs[i].meta().clone()).collect();
    let mut reaches = Vec::new();
    let recording = trace::record(&[&results[..], &results].concat(), |v| {
        let (dy, y) = v.split_at(floats.len());
        let [mut all_y, mut all_dy] = [outputs.to_vec(), outputs.iter().map(Tensor::zeros_like).collect()];
        for (k, &i) in floats.iter().enumerate() {
            (all_y[i], all_dy[i]) = (y[k].clone(), dy[k].clone());
        }
        let grads = backward(inputs, &all_y, &all_dy);
        reaches = grads.iter().map(Option::is_some).collect();
        grads.into_iter().flatten().collect()
    });
    if let Some(set) = recording.params.iter().find(|p| p.write.is_some()) {
        let name = Param::name(&set.param);
        panic!(
            "custom_vjp: `backward` sets param `{name}`; in a compiled function it may only read parameters"
        );
    }
    Rule { recording, results, reaches }
}
