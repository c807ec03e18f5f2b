//! Recurrent networks over a whole sequence in one call.
//!
//! The rows of a batch do not see each other, so a task takes some rows through all time steps and no
//! step waits for another thread. The weights of the hidden state are packed once for all steps. The walk through
//! time, forward and backward, is the same for every cell; a cell says what follows the products with the state.

mod gru;
mod lstm;
mod rnn;
#[cfg(test)]
mod tests;

pub use gru::{GRU_BACK, GRU_KEPT, gru, gru_backward};
pub use lstm::{LSTM_KEPT, lstm, lstm_backward};
pub use rnn::{Activation, rnn, rnn_backward};

use std::ops::Range;

use crate::gemm::MatRef;
use crate::gemm::packed::{Packed, gemm_packed, packed_len, tile_height, with_scratch};
use crate::simd::vector::F32s;
use crate::stream::split::SharedMut;
use crate::threads::{parallel, threads};

/// Rows of the batch that one task takes at most.
const MAX_ROWS: usize = 48;

/// Multiply-adds from which more threads than one are worth their wake-up.
const PARALLEL_MIN: usize = 1 << 18;

/// Sizes of a sequence and the direction in which it is walked.
#[derive(Debug, Clone, Copy)]
pub struct Sequence {
    /// Time steps.
    pub steps: usize,
    /// Sequences side by side.
    pub batch: usize,
    /// Numbers of a state.
    pub hidden: usize,
    /// Whether time runs from the last step to the first.
    pub reverse: bool,
}

impl Sequence {
    /// Calls `f` with ranges of the rows of a batch, on all threads if the work, `gates` parts of products per step, is
    /// worth it. A row's result does not depend on the range it is in, so the number of threads may decide the cut.
    fn par_batch(&self, gates: usize, f: impl Fn(Range<usize>) + Sync) {
        let work = self.steps * self.batch * self.hidden * self.hidden * gates;
        let n_threads = if work < PARALLEL_MIN { 1 } else { threads() };
        let rows = self.batch.div_ceil(n_threads * self.batch.div_ceil(n_threads * MAX_ROWS).max(1)).max(1);
        // A part of a tile costs nearly as much as a whole one.
        let rows = if rows < tile_height() { tile_height() } else { rows };
        let task = |i: usize| f(i * rows..self.batch.min((i + 1) * rows));
        let n_tasks = self.batch.div_ceil(rows);
        if n_threads == 1 { (0..n_tasks).for_each(task) } else { parallel(n_tasks, &task) }
    }

    /// Which time step comes at place `place` of a walk, and whether one came before it: that step.
    fn step_at(&self, place: usize) -> (usize, Option<usize>) {
        let at = |place: usize| if self.reverse { self.steps - 1 - place } else { place };
        (at(place), place.checked_sub(1).map(at))
    }

    /// Where some rows of step `t` lie in a matrix of `parts` parts of `hidden` numbers.
    fn at(&self, t: usize, rows: &Range<usize>, parts: usize) -> Range<usize> {
        let width = parts * self.hidden;
        (t * self.batch + rows.start) * width..(t * self.batch + rows.end) * width
    }
}

/// How a cell cuts its rows into parts of `hidden` numbers.
#[derive(Clone, Copy)]
struct Parts {
    /// Products with the state.
    gates: usize,
    /// Of a row of the result.
    kept: usize,
    /// Which of these is the state.
    state: usize,
    /// Of a row of gradients; the gradients of the products come first.
    back: usize,
    /// Whether the state also reaches the next one past the products.
    passes: bool,
}

/// One step of some rows.
struct Step<'a> {
    t: usize,
    rows: Range<usize>,
    /// The result of the step before, if there was one.
    before: Option<&'a [f32]>,
    /// Where the result goes; its first parts are the products.
    now: &'a mut [f32],
}

/// Walks through time: the products of each state with u go to the first parts of the step's rows of y, and `cells` makes
/// the rows of them. u: (gates hidden, hidden); h0: (batch, hidden); y: (steps, batch, kept hidden).
fn forward(
    net: Sequence,
    parts: Parts,
    u: MatRef<'_, f32>,
    h0: &[f32],
    y: &mut [f32],
    cells: impl Fn(Step<'_>) + Sync,
) {
    let Sequence { steps, batch, hidden, .. } = net;
    let width = parts.kept * hidden;
    assert!(
        y.len() == steps * batch * width && h0.len() == batch * hidden,
        "recurrent: wrong size of y or h0"
    );
    assert!(u.rows() == parts.gates * hidden && u.cols() == hidden, "recurrent: wrong size of u");
    if y.is_empty() {
        return;
    }
    with_scratch(packed_len(hidden, parts.gates * hidden), |room| {
        let u = Packed::new(u.t(), room);
        let y = SharedMut::new(y);
        net.par_batch(parts.gates, |rows| {
            for place in 0..steps {
                let (t, before) = net.step_at(place);
                // SAFETY: a task has its own rows, and two steps have none in common.
                let part = |t: usize| unsafe { y.range(net.at(t, &rows, parts.kept)) };
                let (now, before) = (part(t), before.map(|t| &*part(t)));
                let h = match before {
                    Some(y) => MatRef::new(&y[parts.state * hidden..], rows.len(), hidden, width, 1),
                    None => MatRef::new(&h0[rows.start * hidden..], rows.len(), hidden, hidden, 1),
                };
                gemm_packed(h, u, now, width, false);
                cells(Step { t, rows: rows.clone(), before, now });
            }
        });
    });
}

/// One step back of some rows.
struct StepBack<'a> {
    rows: Range<usize>,
    /// The result of the step before in time, if there was one.
    before: Option<&'a [f32]>,
    /// The result of this step, and its gradient.
    y: &'a [f32],
    dy: &'a [f32],
    /// What later steps say of this state; then what passes by the products.
    dh: &'a mut [f32],
    /// Where the gradients go.
    dx: &'a mut [f32],
}

/// Walks back through time. y, dy: (steps, batch, kept hidden); dx: (steps, batch, back hidden); dh0: (batch, hidden).
fn backward(
    net: Sequence,
    parts: Parts,
    u: MatRef<'_, f32>,
    [y, dy]: [&[f32]; 2],
    [dx, dh0]: [&mut [f32]; 2],
    cells: impl Fn(StepBack<'_>) + Sync,
) {
    let Sequence { steps, batch, hidden, .. } = net;
    let state = batch * hidden;
    assert!(y.len() == steps * parts.kept * state && dy.len() == y.len(), "recurrent: wrong size of y or dy");
    assert!(
        dx.len() == steps * parts.back * state && dh0.len() == state,
        "recurrent: wrong size of a gradient"
    );
    assert!(u.rows() == parts.gates * hidden && u.cols() == hidden, "recurrent: wrong size of u");
    if state == 0 {
        return;
    }
    with_scratch(packed_len(parts.gates * hidden, hidden), |room| {
        let u = Packed::new(u, room);
        let [dx, dh0] = [dx, dh0].map(SharedMut::new);
        net.par_batch(parts.gates, |rows| {
            // SAFETY: a task has its own rows, in both results.
            let dh = unsafe { dh0.range(rows.start * hidden..rows.end * hidden) };
            dh.fill(0.0);
            for place in (0..steps).rev() {
                let (t, before) = net.step_at(place);
                let before = before.map(|t| &y[net.at(t, &rows, parts.kept)]);
                let here = net.at(t, &rows, parts.kept);
                // SAFETY: as above; no two steps have rows in common.
                let dx = unsafe { dx.range(net.at(t, &rows, parts.back)) };
                let (y, dy) = (&y[here.clone()], &dy[here]);
                cells(StepBack { rows: rows.clone(), before, y, dy, dh: &mut *dh, dx: &mut *dx });
                let d = MatRef::new(dx, rows.len(), parts.gates * hidden, parts.back * hidden, 1);
                gemm_packed(d, u, dh, hidden, parts.passes);
            }
        });
    });
}

/// Rows of states: one part of wider rows.
#[derive(Clone, Copy)]
struct States<'a> {
    data: &'a [f32],
    stride: usize,
}

impl<'a> States<'a> {
    /// Part `part` of the rows before, or what there was at first, of which `rows` are meant.
    fn new(
        before: Option<&'a [f32]>,
        part: usize,
        width: usize,
        first: &'a [f32],
        rows: &Range<usize>,
        hidden: usize,
    ) -> Self {
        match before {
            Some(before) => Self { data: &before[part * hidden..], stride: width },
            None => Self { data: &first[rows.start * hidden..rows.end * hidden], stride: hidden },
        }
    }

    fn row(&self, i: usize, hidden: usize) -> *const f32 {
        self.data[i * self.stride..][..hidden].as_ptr()
    }
}

/// Elements `j .. j + n` of a part of `hidden` elements. Methods and not closures, which may stay calls, and then
/// without the instruction set.
#[derive(Clone, Copy)]
struct Place {
    hidden: usize,
    j: usize,
    n: usize,
}

impl Place {
    /// # Safety
    /// `from` reaches over the part, and the CPU has the instruction set of `V`.
    #[inline(always)]
    unsafe fn load<V: F32s>(self, from: *const f32, part: usize) -> V {
        // SAFETY: passed on to the caller.
        unsafe { V::load_n(from.add(part * self.hidden + self.j), self.n, 0.0) }
    }

    /// # Safety
    /// `to` reaches over the part.
    #[inline(always)]
    unsafe fn store<V: F32s>(self, value: V, to: *mut f32, part: usize) {
        // SAFETY: passed on to the caller.
        unsafe { value.store_n(to.add(part * self.hidden + self.j), self.n) };
    }
}
