//! `lstm_sequence_grad`: the gradients of an LSTM over time with respect to what enters its gates, to its first
//! state and to its first cell, one after the other in one vector.

use thalweg_core::{View, ViewMut};
use thalweg_kernels::gemm::MatRef;
use thalweg_kernels::recurrent::{Sequence, lstm_backward};

use crate::error::OpError;
use crate::functions::recurrent::gate;
use crate::meta::Meta;
use crate::ops::LstmSequence;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::rowwise::{narrow_into, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::sequence::{self, PerUnit, joined};
use crate::ops::single;
use crate::tensor::Tensor;

/// y: (time, batch, 6 hidden), the result of [`LstmSequence`]; u: (4 hidden, hidden); c: (batch, hidden), the first
/// cell; dy: as y → ((time · 4 + 2) · batch · hidden).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct LstmSequenceGrad {
    /// Whether time runs from the last step to the first.
    pub reverse: bool,
}

impl Primitive for LstmSequenceGrad {
    const NAME: &'static str = "lstm_sequence_grad";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let hint = "y and dy are (time, batch, 6 hidden), u (4 hidden, hidden), a cell (batch, hidden)";
        sequence::infer_grad(Self::NAME, x, &PerUnit { kept: 6, gates: 4, states: 2 }, hint)
    }

    fn keep(&self) -> Keep {
        Keep::INPUTS
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        g.through(|x| self.by_primitives(x))
    }

    fn eval(&self, x: &[View<'_>], to: &mut ViewMut<'_>) -> Result<(), OpError> {
        let Sequence { steps, batch, hidden: n, .. } = self.net(x[0], x[1]);
        let [y, u, c0, dy] = [0, 1, 2, 3].map(|i| widened(x[i]));
        let mut values = vec![0.0; to.shape().numel()];
        let (dx, rest) = values.split_at_mut(steps * batch * 4 * n);
        let (dh, dc) = rest.split_at_mut(batch * n);
        for place in (0..steps).rev() {
            let at = |place: usize| if self.reverse { steps - 1 - place } else { place };
            let t = at(place);
            for (b, j) in (0..batch).flat_map(|b| (0..n).map(move |j| (b, j))) {
                let part = |x: &[f64], t: usize, k: usize| x[(t * batch + b) * 6 * n + k * n + j];
                let [i, f, g, o, c] = [0, 1, 2, 3, 4].map(|k| part(&y, t, k));
                let before = if place > 0 { part(&y, at(place - 1), 4) } else { c0[b * n + j] };
                let d = |k: usize| part(&dy, t, k);
                let dh = dh[b * n + j] + d(5);
                let d_cell = dc[b * n + j] + d(4) + dh * o * (1.0 - c.tanh().powi(2));
                let gates = [
                    (d_cell * g + d(0)) * i * (1.0 - i),
                    (d_cell * before + d(1)) * f * (1.0 - f),
                    (d_cell * i + d(2)) * (1.0 - g * g),
                    (dh * c.tanh() + d(3)) * o * (1.0 - o),
                ];
                gates.iter().enumerate().for_each(|(k, v)| dx[(t * batch + b) * 4 * n + k * n + j] = *v);
                dc[b * n + j] = d_cell * f;
            }
            for (b, j) in (0..batch).flat_map(|b| (0..n).map(move |j| (b, j))) {
                let gates = &dx[(t * batch + b) * 4 * n..][..4 * n];
                dh[b * n + j] = gates.iter().enumerate().map(|(row, d)| d * u[row * n + j]).sum();
            }
        }
        narrow_into(&values, to);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], to: &mut ViewMut<'_>) -> bool {
        let net = self.net(x[0], x[1]);
        let Some(x) = single::operands(x) else { return false };
        let u = MatRef::row_major(&x[1], 4 * net.hidden, net.hidden);
        let state = net.batch * net.hidden;
        single::result(to, |to| {
            let (dx, rest) = to.split_at_mut(net.steps * 4 * state);
            let (dh0, dc0) = rest.split_at_mut(state);
            lstm_backward(net, &x[0], u, &x[2], &x[3], [dx, dh0, dc0]);
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let rows = (x[0].shape[0] * x[0].shape[1]) as u64;
        Cost { flops: 2 * rows * x[1].numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        Some(self.by_primitives(x))
    }

    fn samples() -> Vec<Sample> {
        let call = |steps: usize, batch: usize, n: usize, reverse: bool| {
            let draw = |shape: &[usize]| Draw::float(shape, -1.0, 1.0);
            let y = [steps, batch, 6 * n];
            Sample::new(
                LstmSequenceGrad { reverse },
                [draw(&y), draw(&[4 * n, n]), draw(&[batch, n]), draw(&y)],
            )
        };
        vec![
            call(3, 2, 2, false),
            call(2, 1, 3, true),
            call(1, 2, 1, false),
            call(0, 2, 2, false),
            call(2, 0, 2, false),
        ]
    }
}

impl LstmSequenceGrad {
    fn net(&self, y: View<'_>, u: View<'_>) -> Sequence {
        LstmSequence { reverse: self.reverse }.net(y, u)
    }

    fn by_primitives(&self, x: &[Tensor]) -> Tensor {
        let [y, u, c0, dy] = [&x[0], &x[1], &x[2], &x[3]];
        let (steps, hidden) = (y.size(0), u.size(1));
        let (mut dh, mut dc) = (c0.zeros_like(), c0.zeros_like());
        let mut rows = vec![];
        for place in (0..steps).rev() {
            let at = |place: usize| if self.reverse { steps - 1 - place } else { place } as isize;
            let part = |x: &Tensor, k: usize| gate(&x.select(0, at(place)), k, hidden);
            let [i, f, g, o, c] = [0, 1, 2, 3, 4].map(|k| part(y, k));
            let before = if place > 0 { gate(&y.select(0, at(place - 1)), 4, hidden) } else { c0.clone() };
            let (tanh_c, d) = (c.tanh(), |k: usize| part(dy, k));
            let d_state = &dh + d(5);
            let d_cell = &dc + d(4) + &d_state * &o * (1.0 - tanh_c.square());
            let gates = [
                (&d_cell * &g + d(0)) * &i * (1.0 - &i),
                (&d_cell * before + d(1)) * &f * (1.0 - &f),
                (&d_cell * &i + d(2)) * (1.0 - g.square()),
                (&d_state * tanh_c + d(3)) * &o * (1.0 - &o),
            ];
            let gates = Tensor::concat(&gates, -1);
            (dh, dc) = (gates.matmul(u), d_cell * f);
            rows.push(gates);
        }
        joined(rows, self.reverse, &[dh, dc])
    }
}
