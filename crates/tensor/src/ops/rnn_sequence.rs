//! `rnn_sequence`: a plain recurrent network over all time steps. Each row of the result is the state h = f(x + u h).

use thalweg_core::{View, ViewMut};
use thalweg_kernels::gemm::MatRef;
use thalweg_kernels::recurrent::{self, Sequence};

use crate::apply::run;
use crate::error::OpError;
use crate::functions::recurrent::RnnActivation;
use crate::meta::{Meta, arity, require_float, require_same_dtype};
use crate::ops::RnnSequenceGrad;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::rowwise::{narrow_into, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::sequence::{in_time, of_weights, walk};
use crate::ops::single;
use crate::tensor::Tensor;

/// x: (time, batch, hidden), what input and biases add; u: (hidden, hidden); h: (batch, hidden) → (time, batch, hidden).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct RnnSequence {
    /// Whether time runs from the last step to the first.
    pub reverse: bool,
    /// f.
    pub activation: RnnActivation,
}

impl Primitive for RnnSequence {
    const NAME: &'static str = "rnn_sequence";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x, u, h] = arity(Self::NAME, x)?;
        check(Self::NAME, x, u, h)?;
        Ok(x.clone())
    }

    fn keep(&self) -> Keep {
        Keep::input(1).and(Keep::input(2)).and(Keep::OUTPUT)
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (y, u, h0) = (g.y(), g.x(1), g.x(2));
        let op = RnnSequenceGrad { reverse: self.reverse, activation: self.activation };
        let joined = run(op, &[&y, u, h0, g.dy()]);
        let pieces = joined.split_sizes(&[y.numel(), h0.numel()], 0);
        let dx = pieces[0].reshape(y.shape());
        let du = g.want(1, || of_weights(&dx, &y, h0, 0, self.reverse));
        let dh0 = pieces[1].reshape(h0.shape());
        Grad::Inputs(smallvec::smallvec![Some(dx), du, Some(dh0)])
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let Sequence { steps, batch, hidden: n, .. } = self.net(x[0]);
        let [x, u, mut h] = [0, 1, 2].map(|i| widened(x[i]));
        let mut values = vec![0.0; y.shape().numel()];
        for t in walk(steps, self.reverse) {
            let before = h.clone();
            for (b, j) in (0..batch).flat_map(|b| (0..n).map(move |j| (b, j))) {
                let products = u[j * n..][..n].iter().zip(&before[b * n..]).map(|(u, h)| u * h);
                let at = (t * batch + b) * n + j;
                let sum = x[at] + products.sum::<f64>();
                values[at] = match self.activation {
                    RnnActivation::Tanh => sum.tanh(),
                    RnnActivation::Relu if sum < 0.0 => 0.0,
                    RnnActivation::Relu => sum,
                };
                h[b * n + j] = values[at];
            }
        }
        narrow_into(&values, y);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let net = self.net(x[0]);
        let Some(x) = single::operands(x) else { return false };
        let u = MatRef::row_major(&x[1], net.hidden, net.hidden);
        single::result(y, |y| recurrent::rnn(net, self.activation.kernel(), &x[0], u, &x[2], y))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 2 * x[0].numel() as u64 * x[1].shape[1] as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        if x[0].size(0) == 0 {
            return Some(x[0].clone());
        }
        let mut h = x[2].clone();
        let mut rows = vec![];
        for t in walk(x[0].size(0), self.reverse) {
            h = self.activation.apply(&(x[0].select(0, t as isize) + h.matmul(&x[1].t())));
            rows.push(h.clone());
        }
        Some(in_time(rows, self.reverse))
    }

    fn samples() -> Vec<Sample> {
        samples(|reverse, activation, [x, _], u, h| {
            Sample::new(RnnSequence { reverse, activation }, [x, u, h])
        })
    }
}

impl RnnSequence {
    pub(crate) fn net(&self, x: View<'_>) -> Sequence {
        let (steps, batch, hidden) = (x.shape()[0], x.shape()[1], x.shape()[2]);
        Sequence { steps, batch, hidden, reverse: self.reverse }
    }
}

/// Whether the operands of the op, or of its gradient, fit each other.
pub(crate) fn check(op: &'static str, x: &Meta, u: &Meta, h: &Meta) -> Result<(), OpError> {
    require_float(op, x)?;
    [u, h].iter().try_for_each(|other| require_same_dtype(op, x, other))?;
    let misfit = |other: &Meta| {
        let hint = "x is (time, batch, hidden), u (hidden, hidden), a state (batch, hidden)";
        OpError::Shapes { op, left: x.shape.clone(), right: other.shape.clone(), hint }
    };
    match x.shape[..] {
        [_, _, hidden] if u.shape[..] != [hidden, hidden] => Err(misfit(u)),
        [_, batch, hidden] if h.shape[..] != [batch, hidden] => Err(misfit(h)),
        [_, _, _] => Ok(()),
        _ => Err(misfit(u)),
    }
}

/// The calls that the op and its gradient are tried on: two tensors over time, u, h.
pub(crate) fn samples(call: impl Fn(bool, RnnActivation, [Draw; 2], Draw, Draw) -> Sample) -> Vec<Sample> {
    let one = |steps: usize, batch: usize, n: usize, reverse: bool, activation: RnnActivation| {
        let draw = |shape: &[usize]| Draw::float(shape, -1.0, 1.0);
        let x = [(); 2].map(|()| draw(&[steps, batch, n]));
        call(reverse, activation, x, draw(&[n, n]), draw(&[batch, n]))
    };
    vec![
        one(3, 2, 2, false, RnnActivation::Tanh),
        one(2, 1, 3, true, RnnActivation::Tanh),
        one(3, 2, 2, true, RnnActivation::Relu),
        one(0, 2, 2, false, RnnActivation::Tanh),
        one(2, 0, 2, false, RnnActivation::Relu),
    ]
}
