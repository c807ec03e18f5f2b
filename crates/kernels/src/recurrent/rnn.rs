//! The plain recurrent network, h = f(x + u h): forward and backward.

use super::{Parts, Place, Sequence, Step, StepBack};
use crate::gemm::MatRef;
use crate::math::exponential::tanh;
use crate::simd::vector::F32s;
use crate::simd::{Body, dispatch};

/// What f is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// tanh.
    Tanh,
    /// max(0, x), with a gradient of 0 at 0.
    Relu,
}

const PARTS: Parts = Parts { gates: 1, kept: 1, state: 0, back: 1, passes: false };

/// A plain network over time. x: (steps, batch, hidden), what the input and all biases add; u: (hidden, hidden);
/// h0: (batch, hidden); y: (steps, batch, hidden), the states.
pub fn rnn(net: Sequence, f: Activation, x: &[f32], u: MatRef<'_, f32>, h0: &[f32], y: &mut [f32]) {
    assert_eq!(x.len(), net.steps * net.batch * net.hidden, "rnn: wrong size of x");
    super::forward(net, PARTS, u, h0, y, |Step { t, rows, now, .. }| {
        dispatch(Cells { f, x: &x[net.at(t, &rows, 1)], y: now });
    });
}

/// The gradients of [`rnn`]. y: its result; dy, dx: (steps, batch, hidden); dh0: (batch, hidden). The gradient of u is the
/// product dxᵀ h over all steps, with h the states before each.
pub fn rnn_backward(
    net: Sequence,
    f: Activation,
    y: &[f32],
    u: MatRef<'_, f32>,
    dy: &[f32],
    [dx, dh0]: [&mut [f32]; 2],
) {
    super::backward(net, PARTS, u, [y, dy], [dx, dh0], |StepBack { y, dy, dh, dx, .. }| {
        dispatch(CellsBackward { f, y, dy, dh, dx });
    });
}

/// The states of one step, in the place of the products. All slices are equally long, and need no rows.
struct Cells<'a> {
    f: Activation,
    x: &'a [f32],
    y: &'a mut [f32],
}

impl Body for Cells<'_> {
    type Out = ();

    #[inline(always)]
    fn run<V: F32s>(self, v: V) {
        let (hidden, zero) = (self.y.len(), v.splat(0.0));
        let (x, y) = (self.x[..hidden].as_ptr(), self.y.as_mut_ptr());
        let mut j = 0;
        while j < hidden {
            let n = (hidden - j).min(V::LANES);
            // SAFETY: `j + n` is at most the length of both. The argument of type `V` proves its instruction set.
            unsafe {
                let at = Place { hidden, j, n };
                let sum = at.load::<V>(x, 0) + at.load(y, 0);
                let h = match self.f {
                    Activation::Tanh => tanh(sum),
                    Activation::Relu => sum.max_or_nan(zero),
                };
                at.store(h, y, 0);
            }
            j += n;
        }
    }
}

/// One step back: the gradients of the sums.
struct CellsBackward<'a> {
    f: Activation,
    y: &'a [f32],
    dy: &'a [f32],
    /// What later steps say of this state.
    dh: &'a [f32],
    dx: &'a mut [f32],
}

impl Body for CellsBackward<'_> {
    type Out = ();

    #[inline(always)]
    fn run<V: F32s>(self, v: V) {
        let (hidden, one) = (self.dx.len(), v.splat(1.0));
        let [y, dy, dh] = [self.y, self.dy, self.dh].map(|s| s[..hidden].as_ptr());
        if self.f == Activation::Relu {
            for (i, dx) in self.dx.iter_mut().enumerate() {
                *dx = if self.y[i] > 0.0 { self.dh[i] + self.dy[i] } else { 0.0 };
            }
            return;
        }
        let dx = self.dx.as_mut_ptr();
        let mut j = 0;
        while j < hidden {
            let n = (hidden - j).min(V::LANES);
            // SAFETY: `j + n` is at most the length of all. The argument of type `V` proves its instruction set.
            unsafe {
                let at = Place { hidden, j, n };
                let h: V = at.load(y, 0);
                at.store((at.load::<V>(dh, 0) + at.load(dy, 0)) * (one - h * h), dx, 0);
            }
            j += n;
        }
    }
}
