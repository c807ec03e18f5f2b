//! The GRU: forward, keeping gates, and backward. The reset gate acts after the product with the state.

use super::{Parts, Place, Sequence, States, Step, StepBack};
use crate::gemm::MatRef;
use crate::math::exponential::{sigmoid, tanh};
use crate::simd::vector::F32s;
use crate::simd::{Body, dispatch};

/// Parts in a row of the result: the gates r and z and the candidate n after their functions, what the state gives to
/// the candidate before the reset, q, and the state h.
pub const GRU_KEPT: usize = 5;
/// Parts in a row of gradients: of the sums in r and z, of q, of the sum in n.
pub const GRU_BACK: usize = 4;
const PARTS: Parts = Parts { gates: 3, kept: GRU_KEPT, state: 4, back: GRU_BACK, passes: true };

/// A GRU over time. x: (steps, batch, 3 hidden), what the input and its bias add to the gates; u: (3 hidden, hidden);
/// b: (3 hidden), the bias of the products with the state; h0: (batch, hidden); y: (steps, batch, 5 hidden), see
/// [`GRU_KEPT`].
pub fn gru(net: Sequence, x: &[f32], u: MatRef<'_, f32>, b: &[f32], h0: &[f32], y: &mut [f32]) {
    let Sequence { steps, batch, hidden, .. } = net;
    assert!(x.len() == steps * batch * 3 * hidden && b.len() == 3 * hidden, "gru: wrong size of x or b");
    super::forward(net, PARTS, u, h0, y, |Step { t, rows, before, now }| {
        let h = States::new(before, 4, 5 * hidden, h0, &rows, hidden);
        dispatch(Cells { hidden, x: &x[net.at(t, &rows, 3)], b, h, y: now });
    });
}

/// The gradients of [`gru`]. y: its result; dy: (steps, batch, 5 hidden); d: (steps, batch, 4 hidden), see [`GRU_BACK`];
/// dh0: (batch, hidden). The gradient of u is the product of the first three parts of d with the states before each step.
pub fn gru_backward(
    net: Sequence,
    y: &[f32],
    u: MatRef<'_, f32>,
    h0: &[f32],
    dy: &[f32],
    [d, dh0]: [&mut [f32]; 2],
) {
    let hidden = net.hidden;
    assert_eq!(h0.len(), net.batch * hidden, "gru: wrong size of h0");
    super::backward(net, PARTS, u, [y, dy], [d, dh0], |StepBack { rows, before, y, dy, dh, dx, .. }| {
        let h = States::new(before, 4, 5 * hidden, h0, &rows, hidden);
        dispatch(CellsBackward { hidden, y, dy, h, dh, d: dx });
    });
}

/// Gates and states of one step. The products of the state are in the place of the gates.
struct Cells<'a> {
    hidden: usize,
    /// (rows, 3 hidden).
    x: &'a [f32],
    /// (3 hidden).
    b: &'a [f32],
    /// The states before.
    h: States<'a>,
    /// (rows, 5 hidden).
    y: &'a mut [f32],
}

impl Body for Cells<'_> {
    type Out = ();

    #[inline(always)]
    fn run<V: F32s>(self, _: V) {
        let (hidden, b) = (self.hidden, self.b.as_ptr());
        let rows = self.x.chunks_exact(3 * hidden).zip(self.y.chunks_exact_mut(5 * hidden));
        for (row, (x, y)) in rows.enumerate() {
            let (x, y, h) = (x.as_ptr(), y.as_mut_ptr(), self.h.row(row, hidden));
            let mut j = 0;
            while j < hidden {
                let n = (hidden - j).min(V::LANES);
                // SAFETY: x and b have 3, y 5 parts of `hidden` elements and h one, and `j + n <= hidden`. The
                // argument of type `V` proves its instruction set.
                unsafe {
                    let at = Place { hidden, j, n };
                    let r = sigmoid(at.load::<V>(x, 0) + (at.load::<V>(y, 0) + at.load(b, 0)));
                    let z = sigmoid(at.load::<V>(x, 1) + (at.load::<V>(y, 1) + at.load(b, 1)));
                    let q = at.load::<V>(y, 2) + at.load(b, 2);
                    let candidate = tanh(r.mul_add(q, at.load(x, 2)));
                    at.store(r, y, 0);
                    at.store(z, y, 1);
                    at.store(candidate, y, 2);
                    at.store(q, y, 3);
                    at.store(z.mul_add(at.load::<V>(h, 0) - candidate, candidate), y, 4);
                }
                j += n;
            }
        }
    }
}

/// One step back: the gradients of the sums, and what of the state's gradient passes by them.
struct CellsBackward<'a> {
    hidden: usize,
    /// (rows, 5 hidden), as is dy.
    y: &'a [f32],
    dy: &'a [f32],
    /// The states before.
    h: States<'a>,
    /// (rows, hidden): what later steps say of this state; then what the one before gets of it past the products.
    dh: &'a mut [f32],
    /// (rows, 4 hidden).
    d: &'a mut [f32],
}

impl Body for CellsBackward<'_> {
    type Out = ();

    #[inline(always)]
    fn run<V: F32s>(self, v: V) {
        let (hidden, one) = (self.hidden, v.splat(1.0));
        let rows = self.y.chunks_exact(5 * hidden).zip(self.dy.chunks_exact(5 * hidden));
        let out = self.d.chunks_exact_mut(4 * hidden).zip(self.dh.chunks_exact_mut(hidden));
        for (row, ((y, dy), (d, dh))) in rows.zip(out).enumerate() {
            let (y, dy, d, dh) = (y.as_ptr(), dy.as_ptr(), d.as_mut_ptr(), dh.as_mut_ptr());
            let h = self.h.row(row, hidden);
            let mut j = 0;
            while j < hidden {
                let n = (hidden - j).min(V::LANES);
                // SAFETY: y and dy have 5, d 4 parts of `hidden` elements, the others one, and `j + n <= hidden`. The
                // argument of type `V` proves its instruction set.
                unsafe {
                    let at = Place { hidden, j, n };
                    let (r, z): (V, V) = (at.load(y, 0), at.load(y, 1));
                    let (candidate, q): (V, V) = (at.load(y, 2), at.load(y, 3));
                    let d_state: V = at.load::<V>(dh, 0) + at.load(dy, 4);
                    let d_candidate =
                        d_state.mul_add(one - z, at.load(dy, 2)) * (one - candidate * candidate);
                    let d_update = d_state.mul_add(at.load::<V>(h, 0) - candidate, at.load(dy, 1));
                    let d_reset = d_candidate.mul_add(q, at.load(dy, 0));
                    at.store(d_reset * r * (one - r), d, 0);
                    at.store(d_update * z * (one - z), d, 1);
                    at.store(d_candidate.mul_add(r, at.load(dy, 3)), d, 2);
                    at.store(d_candidate, d, 3);
                    at.store(d_state * z, dh, 0);
                }
                j += n;
            }
        }
    }
}
