//! `gru_sequence`: a GRU over all time steps. Each row of the result holds the gates r and z and the candidate n after
//! their functions, q = u h + b of the candidate, and the state h = n + z (h − n) with n = tanh(x + r q).

use thalweg_core::{View, ViewMut};
use thalweg_kernels::gemm::MatRef;
use thalweg_kernels::recurrent::{self, Sequence};

use crate::apply::run;
use crate::error::OpError;
use crate::functions::recurrent::gate;
use crate::meta::{Meta, arity, require_float, require_same_dtype};
use crate::ops::GruSequenceGrad;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::rowwise::{narrow_into, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::sequence::{in_time, of_weights, walk};
use crate::ops::single;
use crate::tensor::Tensor;

/// x: (time, batch, 3 hidden), what input and its bias add to the gates; u: (3 hidden, hidden) and b: (3 hidden), the
/// weights and the bias of the state; h: (batch, hidden) → (time, batch, 5 hidden). The gates are part of the result since
/// the gradient needs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct GruSequence {
    /// Whether time runs from the last step to the first.
    pub reverse: bool,
}

impl Primitive for GruSequence {
    const NAME: &'static str = "gru_sequence";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x, u, b, h] = arity(Self::NAME, x)?;
        require_float(Self::NAME, x)?;
        [u, b, h].iter().try_for_each(|other| require_same_dtype(Self::NAME, x, other))?;
        let misfit = |other: &Meta| {
            let hint = "x is (time, batch, 3 hidden), u (3 hidden, hidden), b (3 hidden), h (batch, hidden)";
            OpError::Shapes { op: Self::NAME, left: x.shape.clone(), right: other.shape.clone(), hint }
        };
        let (&[steps, batch, gates], &[rows, hidden]) = (&x.shape[..], &u.shape[..]) else {
            return Err(misfit(u));
        };
        if gates != 3 * hidden || rows != gates {
            return Err(misfit(u));
        }
        if b.shape[..] != [gates] {
            return Err(misfit(b));
        }
        if h.shape[..] != [batch, hidden] {
            return Err(misfit(h));
        }
        Ok(x.with_shape([steps, batch, 5 * hidden]))
    }

    fn keep(&self) -> Keep {
        Keep::input(1).and(Keep::input(3)).and(Keep::OUTPUT)
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (y, u, h0) = (g.y(), g.x(1), g.x(3));
        let (steps, batch, hidden) = (y.size(0), y.size(1), u.size(1));
        let joined = run(GruSequenceGrad { reverse: self.reverse }, &[&y, u, h0, g.dy()]);
        let state = batch * hidden;
        let pieces = joined.split_sizes(&[steps * 4 * state, state], 0);
        let d = pieces[0].reshape([steps, batch, 4 * hidden]);
        // The sums in r and z come from input and state, q from the state alone, the sum in n from the input.
        let of_state = d.narrow(-1, 0, 3 * hidden);
        let dx = g.want(0, || Tensor::concat(&[d.narrow(-1, 0, 2 * hidden), gate(&d, 3, hidden)], -1));
        let du = g.want(1, || of_weights(&of_state, &y, h0, 4, self.reverse));
        let db = g.want(2, || of_state.sum([0, 1]));
        let dh0 = Some(pieces[1].reshape([batch, hidden]));
        Grad::Inputs(smallvec::smallvec![dx, du, db, dh0])
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let Sequence { steps, batch, hidden: n, .. } = self.net(x[0], x[1]);
        let [x, u, bias, mut h] = [0, 1, 2, 3].map(|i| widened(x[i]));
        let mut values = vec![0.0; y.shape().numel()];
        for t in walk(steps, self.reverse) {
            let before = h.clone();
            for (b, j) in (0..batch).flat_map(|b| (0..n).map(move |j| (b, j))) {
                let of_x = |k: usize| x[(t * batch + b) * 3 * n + k * n + j];
                let of_h = |k: usize| {
                    let products = u[(k * n + j) * n..][..n].iter().zip(&before[b * n..]).map(|(u, h)| u * h);
                    bias[k * n + j] + products.sum::<f64>()
                };
                let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
                let (r, z, q) = (sigmoid(of_x(0) + of_h(0)), sigmoid(of_x(1) + of_h(1)), of_h(2));
                let candidate = (of_x(2) + r * q).tanh();
                let state = candidate + z * (before[b * n + j] - candidate);
                h[b * n + j] = state;
                for (k, value) in [r, z, candidate, q, state].into_iter().enumerate() {
                    values[(t * batch + b) * 5 * n + k * n + j] = value;
                }
            }
        }
        narrow_into(&values, y);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let net = self.net(x[0], x[1]);
        let Some(x) = single::operands(x) else { return false };
        let u = MatRef::row_major(&x[1], 3 * net.hidden, net.hidden);
        single::result(y, |y| recurrent::gru(net, &x[0], u, &x[2], &x[3], y))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let hidden = x[1].shape[1] as u64;
        Cost { flops: 2 * x[0].numel() as u64 * hidden, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        let (steps, hidden) = (x[0].size(0), x[1].size(1));
        if steps == 0 {
            return Some(Tensor::zeros([0, x[0].size(1), 5 * hidden], x[0].dtype()));
        }
        let mut h = x[3].clone();
        let mut rows = vec![];
        for t in walk(steps, self.reverse) {
            let (of_x, of_h) = (x[0].select(0, t as isize), h.matmul(&x[1].t()) + &x[2]);
            let sum = |k: usize| gate(&of_x, k, hidden) + gate(&of_h, k, hidden);
            let (r, z, q) = (sum(0).sigmoid(), sum(1).sigmoid(), gate(&of_h, 2, hidden));
            let candidate = (gate(&of_x, 2, hidden) + &r * &q).tanh();
            h = &candidate + &z * (&h - &candidate);
            rows.push(Tensor::concat(&[r, z, candidate, q, h.clone()], -1));
        }
        Some(in_time(rows, self.reverse))
    }

    fn samples() -> Vec<Sample> {
        let call = |steps: usize, batch: usize, n: usize, reverse: bool| {
            let draw = |shape: &[usize]| Draw::float(shape, -1.0, 1.0);
            let x = [draw(&[steps, batch, 3 * n]), draw(&[3 * n, n]), draw(&[3 * n]), draw(&[batch, n])];
            Sample::new(GruSequence { reverse }, x)
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

impl GruSequence {
    pub(crate) fn net(&self, x: View<'_>, u: View<'_>) -> Sequence {
        let (steps, batch, hidden) = (x.shape()[0], x.shape()[1], u.shape()[1]);
        Sequence { steps, batch, hidden, reverse: self.reverse }
    }
}
