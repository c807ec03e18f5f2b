//! The LSTM: forward, keeping gates and cells, and backward.

use super::{par_batch, step_at};
use crate::gemm::MatRef;
use crate::gemm::packed::{Packed, gemm_packed, packed_len, with_scratch};
use crate::math::exponential::{sigmoid, tanh};
use crate::simd::vector::F32s;
use crate::simd::{Body, dispatch};
use crate::stream::split::SharedMut;

/// Sizes of a sequence and the direction in which it is walked.
#[derive(Debug, Clone, Copy)]
pub struct Lstm {
    /// Time steps.
    pub steps: usize,
    /// Sequences side by side.
    pub batch: usize,
    /// Numbers of a state.
    pub hidden: usize,
    /// Whether time runs from the last step to the first.
    pub reverse: bool,
}

impl Lstm {
    /// Numbers in a row of the result: the gates i, f, g, o after their functions, the cell c, the state h.
    pub const KEPT: usize = 6;

    fn work(&self) -> usize {
        self.steps * self.batch * self.hidden * self.hidden * 4
    }
}

/// An LSTM over time. x: (steps, batch, 4 hidden), what the input and all biases add to the gates;
/// u: (4 hidden, hidden); h0, c0: (batch, hidden); y: (steps, batch, 6 hidden), see [`Lstm::KEPT`].
pub fn lstm(net: Lstm, x: &[f32], u: MatRef<'_, f32>, [h0, c0]: [&[f32]; 2], y: &mut [f32]) {
    let Lstm { steps, batch, hidden, reverse } = net;
    let state = batch * hidden;
    assert!(x.len() == steps * 4 * state && y.len() == steps * 6 * state, "lstm: wrong size of x or y");
    assert!(h0.len() == state && c0.len() == state, "lstm: wrong size of a state");
    assert!(u.rows() == 4 * hidden && u.cols() == hidden, "lstm: wrong size of u");
    if y.is_empty() {
        return;
    }
    with_scratch(packed_len(hidden, 4 * hidden), |room| {
        let u = Packed::new(u.t(), room);
        let y = SharedMut::new(y);
        par_batch(batch, net.work(), |rows| {
            for place in 0..steps {
                let (t, before) = step_at(place, steps, reverse);
                // SAFETY: a task has its own rows, and two steps have none in common.
                let part = |t: usize| unsafe {
                    y.range((t * batch + rows.start) * 6 * hidden..(t * batch + rows.end) * 6 * hidden)
                };
                let now = part(t);
                let (before, stride): (&[f32], usize) = match before {
                    Some(t) => (part(t), 6 * hidden),
                    None => (&h0[rows.start * hidden..], hidden),
                };
                let at = if stride == hidden { 0 } else { 5 * hidden };
                let h = MatRef::new(&before[at..], rows.len(), hidden, stride, 1);
                gemm_packed(h, u, now, 6 * hidden, false);
                let (c, c_stride) = match stride == hidden {
                    true => (&c0[rows.start * hidden..], hidden),
                    false => (&before[4 * hidden..], stride),
                };
                let x = &x[(t * batch + rows.start) * 4 * hidden..(t * batch + rows.end) * 4 * hidden];
                dispatch(Cells { hidden, x, c, c_stride, y: now });
            }
        });
    });
}

/// The gradients of [`lstm`]. y: its result; dy: (steps, batch, 6 hidden); dx: (steps, batch, 4 hidden);
/// dh0, dc0: (batch, hidden). The gradient of u is the product dxᵀ h over all steps, with h the states before each.
pub fn lstm_backward(
    net: Lstm,
    y: &[f32],
    u: MatRef<'_, f32>,
    c0: &[f32],
    dy: &[f32],
    [dx, dh0, dc0]: [&mut [f32]; 3],
) {
    let Lstm { steps, batch, hidden, reverse } = net;
    let state = batch * hidden;
    assert!(y.len() == steps * 6 * state && dy.len() == y.len(), "lstm: wrong size of y or dy");
    assert!(dx.len() == steps * 4 * state && c0.len() == state, "lstm: wrong size of dx or c0");
    assert!(dh0.len() == state && dc0.len() == state, "lstm: wrong size of a state's gradient");
    assert!(u.rows() == 4 * hidden && u.cols() == hidden, "lstm: wrong size of u");
    if state == 0 {
        return;
    }
    with_scratch(packed_len(4 * hidden, hidden), |room| {
        let u = Packed::new(u, room);
        let [dx, dh0, dc0] = [dx, dh0, dc0].map(SharedMut::new);
        par_batch(batch, net.work(), |rows| {
            let states = rows.start * hidden..rows.end * hidden;
            // SAFETY: a task has its own rows, in all three results.
            let (dh, dc) = unsafe { (dh0.range(states.clone()), dc0.range(states.clone())) };
            dh.fill(0.0);
            dc.fill(0.0);
            for place in (0..steps).rev() {
                let (t, before) = step_at(place, steps, reverse);
                let part = |t: usize, n: usize| {
                    (t * batch + rows.start) * n * hidden..(t * batch + rows.end) * n * hidden
                };
                let (c, c_stride) = match before {
                    Some(t) => (&y[part(t, 6)][4 * hidden..], 6 * hidden),
                    None => (&c0[states.clone()], hidden),
                };
                // SAFETY: as above; no two steps have rows in common.
                let dx = unsafe { dx.range(part(t, 4)) };
                let (y, dy) = (&y[part(t, 6)], &dy[part(t, 6)]);
                dispatch(CellsBackward { hidden, y, dy, c, c_stride, dh, dc, dx });
                gemm_packed(MatRef::row_major(dx, rows.len(), 4 * hidden), u, dh, hidden, false);
            }
        });
    });
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

/// Gates, cells and states of one step. The products of the state are in the place of the gates.
struct Cells<'a> {
    hidden: usize,
    /// (rows, 4 hidden).
    x: &'a [f32],
    /// The cells before, rows `c_stride` apart.
    c: &'a [f32],
    c_stride: usize,
    /// (rows, 6 hidden).
    y: &'a mut [f32],
}

impl Body for Cells<'_> {
    type Out = ();

    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        let hidden = self.hidden;
        let rows = self.x.chunks_exact(4 * hidden).zip(self.y.chunks_exact_mut(6 * hidden));
        for (row, (x, y)) in rows.enumerate() {
            let (x, y, c) = (x.as_ptr(), y.as_mut_ptr(), self.c[row * self.c_stride..][..hidden].as_ptr());
            let mut j = 0;
            while j < hidden {
                let n = (hidden - j).min(V::LANES);
                // SAFETY: x has 4, y 6 parts of `hidden` elements and c one, and `j + n <= hidden`. The
                // argument of type `V` proves its instruction set.
                unsafe {
                    let at = Place { hidden, j, n };
                    let i = sigmoid(at.load::<V>(x, 0) + at.load(y, 0));
                    let f = sigmoid(at.load::<V>(x, 1) + at.load(y, 1));
                    let g = tanh(at.load::<V>(x, 2) + at.load(y, 2));
                    let o = sigmoid(at.load::<V>(x, 3) + at.load(y, 3));
                    let c = f.mul_add(at.load(c, 0), i * g);
                    at.store(i, y, 0);
                    at.store(f, y, 1);
                    at.store(g, y, 2);
                    at.store(o, y, 3);
                    at.store(c, y, 4);
                    at.store(o * tanh(c), y, 5);
                }
                j += n;
            }
        }
    }
}

/// One step back: the gradients of the gates before their functions, and of the cells before.
struct CellsBackward<'a> {
    hidden: usize,
    /// (rows, 6 hidden), as is dy.
    y: &'a [f32],
    dy: &'a [f32],
    /// The cells before, rows `c_stride` apart.
    c: &'a [f32],
    c_stride: usize,
    /// (rows, hidden): what later steps say of this state.
    dh: &'a [f32],
    /// (rows, hidden): what later steps say of this cell; then of the one before.
    dc: &'a mut [f32],
    /// (rows, 4 hidden).
    dx: &'a mut [f32],
}

impl Body for CellsBackward<'_> {
    type Out = ();

    #[inline(always)]
    fn run<V: F32s>(self, v: V) {
        let (hidden, one) = (self.hidden, v.splat(1.0));
        let rows = self.y.chunks_exact(6 * hidden).zip(self.dy.chunks_exact(6 * hidden));
        let out = self.dx.chunks_exact_mut(4 * hidden).zip(self.dc.chunks_exact_mut(hidden));
        for (row, ((y, dy), (dx, dc))) in rows.zip(out).enumerate() {
            let (y, dy, dx, dc) = (y.as_ptr(), dy.as_ptr(), dx.as_mut_ptr(), dc.as_mut_ptr());
            let c = self.c[row * self.c_stride..][..hidden].as_ptr();
            let dh = self.dh[row * hidden..][..hidden].as_ptr();
            let mut j = 0;
            while j < hidden {
                let n = (hidden - j).min(V::LANES);
                // SAFETY: y and dy have 6, dx 4 parts of `hidden` elements, the others one, and
                // `j + n <= hidden`. The argument of type `V` proves its instruction set.
                unsafe {
                    let at = Place { hidden, j, n };
                    let (i, f): (V, V) = (at.load(y, 0), at.load(y, 1));
                    let (g, o): (V, V) = (at.load(y, 2), at.load(y, 3));
                    let tanh_c: V = tanh(at.load(y, 4));
                    let dh: V = at.load::<V>(dh, 0) + at.load(dy, 5);
                    let later: V = at.load::<V>(dc, 0) + at.load(dy, 4);
                    let d_cell = (dh * o).mul_add(one - tanh_c * tanh_c, later);
                    at.store(d_cell.mul_add(g, at.load(dy, 0)) * i * (one - i), dx, 0);
                    at.store(d_cell.mul_add(at.load(c, 0), at.load(dy, 1)) * f * (one - f), dx, 1);
                    at.store(d_cell.mul_add(i, at.load(dy, 2)) * (one - g * g), dx, 2);
                    at.store(dh.mul_add(tanh_c, at.load(dy, 3)) * o * (one - o), dx, 3);
                    at.store(d_cell * f, dc, 0);
                }
                j += n;
            }
        }
    }
}
