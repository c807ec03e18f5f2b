//! Recurrent networks over a whole sequence in one call.
//!
//! The rows of a batch do not see each other, so a task takes some rows through all time steps and no
//! step waits for another thread. The weights of the hidden state are packed once for all steps.

mod lstm;
#[cfg(test)]
mod tests;

pub use lstm::{Lstm, lstm, lstm_backward};

use std::ops::Range;

use crate::gemm::packed::tile_height;
use crate::threads::{parallel, threads};

/// Rows of the batch that one task takes at most.
const MAX_ROWS: usize = 48;

/// Multiply-adds from which more threads than one are worth their wake-up.
const PARALLEL_MIN: usize = 1 << 18;

/// Calls `f` with ranges of the rows of a batch, on all threads if `work` is worth it. A row's result does not
/// depend on the range it is in, so the number of threads may decide the cut.
fn par_batch(batch: usize, work: usize, f: impl Fn(Range<usize>) + Sync) {
    let n_threads = if work < PARALLEL_MIN { 1 } else { threads() };
    let rows = batch.div_ceil(n_threads * batch.div_ceil(n_threads * MAX_ROWS).max(1)).max(1);
    // A part of a tile costs nearly as much as a whole one.
    let rows = if rows < tile_height() { tile_height() } else { rows };
    let task = |i: usize| f(i * rows..batch.min((i + 1) * rows));
    let n_tasks = batch.div_ceil(rows);
    if n_threads == 1 { (0..n_tasks).for_each(task) } else { parallel(n_tasks, &task) }
}

/// Which time step comes at place `place` of a walk, and whether one came before it: that step.
fn step_at(place: usize, steps: usize, reverse: bool) -> (usize, Option<usize>) {
    let at = |place: usize| if reverse { steps - 1 - place } else { place };
    (at(place), place.checked_sub(1).map(at))
}
