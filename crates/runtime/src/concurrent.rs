//! Which steps run at the same time: neighbours that do not touch each other's memory, each too small
//! to be worth splitting, together worth waking a thread.
//!
//! Memory was planned for one step after the other, so two steps that are independent in the graph may
//! still share a place. Looking at places instead of values covers both.

use std::ops::Range;

use thalweg_tensor::ops::Op;

use crate::plan::{Home, Plan, Step};

/// Nanoseconds: steps below are not worth a task, steps above split themselves.
const WORTH_A_TASK: Range<f64> = 3e3..150e3;
/// Nanoseconds of a batch that outweigh waking a thread.
const WORTH_A_FORK: f64 = 20e3;
const MAX_BATCH: usize = 16;
/// How far ahead to look for steps to bring forward.
pub(crate) const HORIZON: usize = 24;
/// Bytes of values that get places of their own for that long.
pub(crate) const SMALL: usize = 16 << 10;

/// Cuts the steps into batches. A step further on is brought forward if it touches nothing of what it
/// passes.
pub(crate) fn batches(plan: &mut Plan) -> Vec<Range<usize>> {
    // What has an effect runs on the thread that called, at its place: as something that is not worth a task.
    let has_effect = |s: &Step| s.nodes.iter().any(|&id| plan.graph.op(id).is_some_and(Op::has_effect));
    let time = plan.steps.iter().map(|s| if has_effect(s) { 0.0 } else { estimate(plan, s) });
    let mut time: Vec<f64> = time.collect();
    let mut batches = Vec::new();
    let mut start = 0;
    while start < plan.steps.len() {
        let mut end = start + 1;
        let fits = |t: f64| WORTH_A_TASK.contains(&t);
        let horizon = if fits(time[start]) { (start + HORIZON).min(plan.steps.len()) } else { end };
        for next in start + 1..horizon {
            let free =
                |plan: &Plan| (start..next).all(|i| !conflict(plan, &plan.steps[i], &plan.steps[next]));
            if end - start < MAX_BATCH && fits(time[next]) && free(plan) {
                plan.steps[end..=next].rotate_right(1);
                time[end..=next].rotate_right(1);
                end += 1;
            }
        }
        if time[start..end].iter().sum::<f64>() < WORTH_A_FORK {
            end = start + 1;
        }
        batches.push(start..end);
        start = end;
    }
    batches
}

/// Nanoseconds on one thread of a usual core.
fn estimate(plan: &Plan, step: &Step) -> f64 {
    let cost = plan.cost(step);
    cost.flops as f64 / 40.0 + cost.bytes as f64 / 10.0
}

/// Whether one writes what the other reads or writes.
pub(crate) fn conflict(plan: &Plan, a: &Step, b: &Step) -> bool {
    let writes_into = |a: &Step, b: &Step| {
        let mut touched = b.inputs.iter().map(|r| r.storage).chain(b.outputs.iter().map(|o| o.0));
        touched.any(|y| a.outputs.iter().any(|x| overlap(plan, x.0, y)))
    };
    writes_into(a, b) || writes_into(b, a)
}

pub(crate) fn overlap(plan: &Plan, a: usize, b: usize) -> bool {
    let (x, y) = (&plan.storages[a], &plan.storages[b]);
    match (x.home, y.home) {
        (Home::Arena(p), Home::Arena(q)) => p < q + y.len * y.dtype.size() && q < p + x.len * x.dtype.size(),
        (Home::Joined(j), Home::Param(p)) | (Home::Param(p), Home::Joined(j)) => plan.joined[j].contains(&p),
        (p, q) => p == q,
    }
}
