//! The LSTM: forward, keeping gates and cells, and backward.

use super::{Parts, Place, Sequence, States, Step, StepBack};
use crate::gemm::MatRef;
use crate::math::exponential::{sigmoid, tanh};
use crate::simd::vector::F32s;
use crate::simd::{Body, dispatch};
use crate::stream::split::SharedMut;

/// Parts in a row of the result: the gates i, f, g, o after their functions, the cell c, the state h.
pub const LSTM_KEPT: usize = 6;
const PARTS: Parts = Parts { gates: 4, kept: LSTM_KEPT, state: 5, back: 4, passes: false };

/// An LSTM over time. x: (steps, batch, 4 hidden), what the input and all biases add to the gates;
/// u: (4 hidden, hidden); h0, c0: (batch, hidden); y: (steps, batch, 6 hidden), see [`LSTM_KEPT`].
pub fn lstm(net: Sequence, x: &[f32], u: MatRef<'_, f32>, [h0, c0]: [&[f32]; 2], y: &mut [f32]) {
    let Sequence { steps, batch, hidden, .. } = net;
    let state = batch * hidden;
    assert!(x.len() == steps * 4 * state && c0.len() == state, "lstm: wrong size of x or c0");
    super::forward(net, PARTS, u, h0, y, |Step { t, rows, before, now }| {
        let c = States::new(before, 4, 6 * hidden, c0, &rows, hidden);
        dispatch(Cells { hidden, x: &x[net.at(t, &rows, 4)], c, y: now });
    });
}

/// The gradients of [`lstm`]. y: its result; dy: (steps, batch, 6 hidden); dx: (steps, batch, 4 hidden);
/// dh0, dc0: (batch, hidden). The gradient of u is the product dxᵀ h over all steps, with h the states before each.
pub fn lstm_backward(
    net: Sequence,
    y: &[f32],
    u: MatRef<'_, f32>,
    c0: &[f32],
    dy: &[f32],
    [dx, dh0, dc0]: [&mut [f32]; 3],
) {
    let (hidden, state) = (net.hidden, net.batch * net.hidden);
    assert!(c0.len() == state && dc0.len() == state, "lstm: wrong size of c0 or dc0");
    dc0.fill(0.0);
    let dc0 = SharedMut::new(dc0);
    super::backward(net, PARTS, u, [y, dy], [dx, dh0], |StepBack { rows, before, y, dy, dh, dx, .. }| {
        let c = States::new(before, 4, 6 * hidden, c0, &rows, hidden);
        // SAFETY: a task has its own rows, and takes one step at a time.
        let dc = unsafe { dc0.range(rows.start * hidden..rows.end * hidden) };
        dispatch(CellsBackward { hidden, y, dy, c, dh, dc, dx });
    });
}

/// Gates, cells and states of one step. The products of the state are in the place of the gates.
struct Cells<'a> {
    hidden: usize,
    /// (rows, 4 hidden).
    x: &'a [f32],
    /// The cells before.
    c: States<'a>,
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
            let (x, y, c) = (x.as_ptr(), y.as_mut_ptr(), self.c.row(row, hidden));
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
    /// The cells before.
    c: States<'a>,
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
            let c = self.c.row(row, hidden);
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
