//! `lstm_sequence`: an LSTM over all time steps. Each row of the result holds the gates i, f, g, o after their
//! functions, the cell c = f c + i g and the state h = o tanh(c).

use thalweg_core::{View, ViewMut};
use thalweg_kernels::gemm::MatRef;
use thalweg_kernels::recurrent::{self, Sequence};

use crate::apply::run;
use crate::error::OpError;
use crate::functions::recurrent::{gate, lstm_step};
use crate::meta::{Meta, arity, require_float, require_same_dtype};
use crate::ops::LstmSequenceGrad;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::rowwise::{narrow_into, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::sequence::{in_time, of_weights, walk};
use crate::ops::single;
use crate::tensor::Tensor;

/// x: (time, batch, 4 hidden), what input and biases add to the gates; u: (4 hidden, hidden); h and c:
/// (batch, hidden) → (time, batch, 6 hidden). The gates are part of the result since the gradient needs them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct LstmSequence {
    /// Whether time runs from the last step to the first.
    pub reverse: bool,
}

impl Primitive for LstmSequence {
    const NAME: &'static str = "lstm_sequence";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x, u, h, c] = arity(Self::NAME, x)?;
        require_float(Self::NAME, x)?;
        [u, h, c].iter().try_for_each(|other| require_same_dtype(Self::NAME, x, other))?;
        let misfit = |other: &Meta| {
            let hint = "x is (time, batch, 4 hidden), u (4 hidden, hidden), a state (batch, hidden)";
            OpError::Shapes { op: Self::NAME, left: x.shape.clone(), right: other.shape.clone(), hint }
        };
        let (&[steps, batch, gates], &[_, hidden]) = (&x.shape[..], &u.shape[..]) else {
            return Err(misfit(u));
        };
        if gates != 4 * hidden || u.shape[0] != gates {
            return Err(misfit(u));
        }
        if let Some(state) = [h, c].into_iter().find(|s| s.shape[..] != [batch, hidden]) {
            return Err(misfit(state));
        }
        Ok(x.with_shape([steps, batch, 6 * hidden]))
    }

    fn keep(&self) -> Keep {
        Keep::input(1).and(Keep::input(2)).and(Keep::input(3)).and(Keep::OUTPUT)
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (y, u, h0, c0) = (g.y(), g.x(1), g.x(2), g.x(3));
        let (steps, batch, hidden) = (y.size(0), y.size(1), u.size(1));
        let joined = run(LstmSequenceGrad { reverse: self.reverse }, &[&y, u, c0, g.dy()]);
        let state = batch * hidden;
        let pieces = joined.split_sizes(&[steps * 4 * state, state, state], 0);
        let dx = pieces[0].reshape([steps, batch, 4 * hidden]);
        let du = g.want(1, || of_weights(&dx, &y, h0, 5, self.reverse));
        let [dh0, dc0] = [1, 2].map(|i| Some(pieces[i].reshape([batch, hidden])));
        Grad::Inputs(smallvec::smallvec![Some(dx), du, dh0, dc0])
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let Sequence { steps, batch, hidden: n, .. } = self.net(x[0], x[1]);
        let ([x, u], [mut h, mut c]) = ([widened(x[0]), widened(x[1])], [widened(x[2]), widened(x[3])]);
        let mut values = vec![0.0; y.shape().numel()];
        for t in walk(steps, self.reverse) {
            let before = h.clone();
            for (b, j) in (0..batch).flat_map(|b| (0..n).map(move |j| (b, j))) {
                let sum = |k: usize| {
                    let products = u[(k * n + j) * n..][..n].iter().zip(&before[b * n..]).map(|(u, h)| u * h);
                    x[(t * batch + b) * 4 * n + k * n + j] + products.sum::<f64>()
                };
                let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
                let (i, f, g, o) = (sigmoid(sum(0)), sigmoid(sum(1)), sum(2).tanh(), sigmoid(sum(3)));
                c[b * n + j] = f * c[b * n + j] + i * g;
                h[b * n + j] = o * c[b * n + j].tanh();
                for (k, value) in [i, f, g, o, c[b * n + j], h[b * n + j]].into_iter().enumerate() {
                    values[(t * batch + b) * 6 * n + k * n + j] = value;
                }
            }
        }
        narrow_into(&values, y);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let net = self.net(x[0], x[1]);
        let Some(x) = single::operands(x) else { return false };
        let u = MatRef::row_major(&x[1], 4 * net.hidden, net.hidden);
        single::result(y, |y| recurrent::lstm(net, &x[0], u, [&x[2], &x[3]], y))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let hidden = x[1].shape[1] as u64;
        Cost { flops: 2 * x[0].numel() as u64 * hidden, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        let (steps, hidden) = (x[0].size(0), x[1].size(1));
        if steps == 0 {
            return Some(Tensor::zeros([0, x[0].size(1), 6 * hidden], x[0].dtype()));
        }
        let (mut h, mut c) = (x[2].clone(), x[3].clone());
        let mut rows = vec![];
        for t in walk(steps, self.reverse) {
            let sums = x[0].select(0, t as isize) + h.matmul(&x[1].t());
            let [i, f, g, o] = [0, 1, 2, 3].map(|k| gate(&sums, k, hidden));
            let gates = [i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()];
            (h, c) = lstm_step(&sums, &c);
            rows.push(Tensor::concat(&[&gates[..], &[c.clone(), h.clone()]].concat(), -1));
        }
        Some(in_time(rows, self.reverse))
    }

    fn samples() -> Vec<Sample> {
        let call = |steps: usize, batch: usize, n: usize, reverse: bool| {
            let draw = |shape: &[usize]| Draw::float(shape, -1.0, 1.0);
            let x = [draw(&[steps, batch, 4 * n]), draw(&[4 * n, n]), draw(&[batch, n]), draw(&[batch, n])];
            Sample::new(LstmSequence { reverse }, x)
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

impl LstmSequence {
    pub(crate) fn net(&self, x: View<'_>, u: View<'_>) -> Sequence {
        let (steps, batch, hidden) = (x.shape()[0], x.shape()[1], u.shape()[1]);
        Sequence { steps, batch, hidden, reverse: self.reverse }
    }
}
