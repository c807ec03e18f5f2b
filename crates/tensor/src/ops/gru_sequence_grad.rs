//! `gru_sequence_grad`: the gradients of a GRU over time with respect to the sums in its gates r and z, to q, to the sum
//! in its candidate, step by step, and then to its first state, one after the other in one vector.

use thalweg_core::{View, ViewMut};
use thalweg_kernels::gemm::MatRef;
use thalweg_kernels::recurrent::{Sequence, gru_backward};

use crate::error::OpError;
use crate::functions::recurrent::gate;
use crate::meta::Meta;
use crate::ops::GruSequence;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::rowwise::{narrow_into, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::sequence::{self, PerUnit, joined, walk};
use crate::ops::single;
use crate::tensor::Tensor;

/// y: (time, batch, 5 hidden), the result of [`GruSequence`]; u: (3 hidden, hidden); h: (batch, hidden), the first
/// state; dy: as y → ((time · 4 + 1) · batch · hidden).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct GruSequenceGrad {
    /// Whether time runs from the last step to the first.
    pub reverse: bool,
}

impl Primitive for GruSequenceGrad {
    const NAME: &'static str = "gru_sequence_grad";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let hint = "y and dy are (time, batch, 5 hidden), u (3 hidden, hidden), a state (batch, hidden)";
        sequence::infer_grad(Self::NAME, x, &PerUnit { kept: 5, gates: 3, states: 1 }, hint)
    }

    fn keep(&self) -> Keep {
        Keep::INPUTS
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        g.through(|x| self.by_primitives(x))
    }

    fn eval(&self, x: &[View<'_>], to: &mut ViewMut<'_>) -> Result<(), OpError> {
        let Sequence { steps, batch, hidden: n, .. } = self.net(x[0], x[1]);
        let [y, u, h0, dy] = [0, 1, 2, 3].map(|i| widened(x[i]));
        let mut values = vec![0.0; to.shape().numel()];
        let (d, dh) = values.split_at_mut(steps * batch * 4 * n);
        let order: Vec<usize> = walk(steps, self.reverse).collect();
        for place in (0..steps).rev() {
            let t = order[place];
            for (b, j) in (0..batch).flat_map(|b| (0..n).map(move |j| (b, j))) {
                let part = |x: &[f64], t: usize, k: usize| x[(t * batch + b) * 5 * n + k * n + j];
                let [r, z, candidate, q] = [0, 1, 2, 3].map(|k| part(&y, t, k));
                let before = if place > 0 { part(&y, order[place - 1], 4) } else { h0[b * n + j] };
                let d_state = dh[b * n + j] + part(&dy, t, 4);
                let d_candidate = (d_state * (1.0 - z) + part(&dy, t, 2)) * (1.0 - candidate * candidate);
                let sums = [
                    (d_candidate * q + part(&dy, t, 0)) * r * (1.0 - r),
                    (d_state * (before - candidate) + part(&dy, t, 1)) * z * (1.0 - z),
                    d_candidate * r + part(&dy, t, 3),
                    d_candidate,
                ];
                sums.iter().enumerate().for_each(|(k, v)| d[(t * batch + b) * 4 * n + k * n + j] = *v);
                dh[b * n + j] = d_state * z;
            }
            for (b, j) in (0..batch).flat_map(|b| (0..n).map(move |j| (b, j))) {
                let sums = &d[(t * batch + b) * 4 * n..][..3 * n];
                dh[b * n + j] += sums.iter().enumerate().map(|(row, d)| d * u[row * n + j]).sum::<f64>();
            }
        }
        narrow_into(&values, to);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], to: &mut ViewMut<'_>) -> bool {
        let net = self.net(x[0], x[1]);
        let Some(x) = single::operands(x) else { return false };
        let u = MatRef::row_major(&x[1], 3 * net.hidden, net.hidden);
        single::result(to, |to| {
            let (d, dh0) = to.split_at_mut(net.steps * 4 * net.batch * net.hidden);
            gru_backward(net, &x[0], u, &x[2], &x[3], [d, dh0]);
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
            let y = [steps, batch, 5 * n];
            let x = [draw(&y), draw(&[3 * n, n]), draw(&[batch, n]), draw(&y)];
            Sample::new(GruSequenceGrad { reverse }, x)
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

impl GruSequenceGrad {
    fn net(&self, y: View<'_>, u: View<'_>) -> Sequence {
        GruSequence { reverse: self.reverse }.net(y, u)
    }

    fn by_primitives(&self, x: &[Tensor]) -> Tensor {
        let [y, u, h0, dy] = [&x[0], &x[1], &x[2], &x[3]];
        let (steps, hidden) = (y.size(0), u.size(1));
        let order: Vec<isize> = walk(steps, self.reverse).map(|t| t as isize).collect();
        let mut dh = h0.zeros_like();
        let mut rows = vec![];
        for place in (0..steps).rev() {
            let part = |x: &Tensor, k: usize| gate(&x.select(0, order[place]), k, hidden);
            let [r, z, candidate, q] = [0, 1, 2, 3].map(|k| part(y, k));
            let before = if place > 0 { gate(&y.select(0, order[place - 1]), 4, hidden) } else { h0.clone() };
            let d_state = &dh + part(dy, 4);
            let d_candidate = (&d_state * (1.0 - &z) + part(dy, 2)) * (1.0 - candidate.square());
            let of_state = Tensor::concat(
                &[
                    (&d_candidate * q + part(dy, 0)) * &r * (1.0 - &r),
                    (&d_state * (before - &candidate) + part(dy, 1)) * &z * (1.0 - &z),
                    &d_candidate * r + part(dy, 3),
                ],
                -1,
            );
            dh = of_state.matmul(u) + d_state * z;
            rows.push(Tensor::concat(&[of_state, d_candidate], -1));
        }
        joined(rows, self.reverse, &[dh])
    }
}
