//! Which steps run at the same time: neighbours that do not touch each other's memory, each too small
//! to be worth splitting, together worth waking a thread.
//!
//! Memory was planned for one step after the other, so two steps that are independent in the graph may
//! still share a place. Looking at places instead of values covers both.

use std::ops::Range;

use crate::plan::{Home, Plan, Step};

/// Nanoseconds: steps below are not worth a task, steps above split themselves.
const WORTH_A_TASK: Range<f64> = 3e3..150e3;
/// Nanoseconds of a batch that outweigh waking a thread.
const WORTH_A_FORK: f64 = 20e3;
const MAX_BATCH: usize = 16;

/// The steps in order, cut into batches.
pub(crate) fn batches(plan: &Plan) -> Vec<Range<usize>> {
    let time: Vec<f64> = plan.steps.iter().map(|s| estimate(plan, s)).collect();
    let mut batches = Vec::new();
    let mut start = 0;
    while start < plan.steps.len() {
        let mut end = start + 1;
        let fits = |i: usize| WORTH_A_TASK.contains(&time[i]);
        while end < plan.steps.len()
            && end - start < MAX_BATCH
            && fits(start)
            && fits(end)
            && (start..end).all(|i| !conflict(plan, &plan.steps[i], &plan.steps[end]))
        {
            end += 1;
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
fn conflict(plan: &Plan, a: &Step, b: &Step) -> bool {
    let written = |s: &Step| s.outputs.iter().map(|o| o.0).collect::<Vec<_>>();
    let touched = |s: &Step| {
        s.inputs.iter().map(|r| r.storage).chain(s.outputs.iter().map(|o| o.0)).collect::<Vec<_>>()
    };
    let meet = |x: &[usize], y: &[usize]| x.iter().any(|&x| y.iter().any(|&y| overlap(plan, x, y)));
    meet(&written(a), &touched(b)) || meet(&touched(a), &written(b))
}

fn overlap(plan: &Plan, a: usize, b: usize) -> bool {
    let (x, y) = (&plan.storages[a], &plan.storages[b]);
    match (x.home, y.home) {
        (Home::Arena(p), Home::Arena(q)) => p < q + y.len * y.dtype.size() && q < p + x.len * x.dtype.size(),
        (p, q) => p == q,
    }
}
