//! `rnn_sequence_grad`: the gradients of a plain recurrent network over time with respect to its sums and to its first
//! state, one after the other in one vector.

use thalweg_core::{View, ViewMut};
use thalweg_kernels::gemm::MatRef;
use thalweg_kernels::recurrent::{Sequence, rnn_backward};

use crate::error::OpError;
use crate::functions::recurrent::RnnActivation;
use crate::meta::{Meta, arity, require_same_dtype};
use crate::ops::RnnSequence;
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::rnn_sequence::{check, samples};
use crate::ops::rowwise::{narrow_into, widened};
use crate::ops::sample::Sample;
use crate::ops::sequence::{joined, walk};
use crate::ops::single;
use crate::tensor::Tensor;

/// y: (time, batch, hidden), the result of [`RnnSequence`]; u: (hidden, hidden); h: (batch, hidden), the first state; dy:
/// as y → ((time + 1) · batch · hidden).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct RnnSequenceGrad {
    /// Whether time runs from the last step to the first.
    pub reverse: bool,
    /// What the network did with its sums.
    pub activation: RnnActivation,
}

impl Primitive for RnnSequenceGrad {
    const NAME: &'static str = "rnn_sequence_grad";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [y, u, h, dy] = arity(Self::NAME, x)?;
        check(Self::NAME, y, u, h)?;
        require_same_dtype(Self::NAME, y, dy)?;
        if dy.shape != y.shape {
            let hint = "the gradient has the shape of the result";
            let (left, right) = (y.shape.clone(), dy.shape.clone());
            return Err(OpError::Shapes { op: Self::NAME, left, right, hint });
        }
        Ok(y.with_shape([y.numel() + h.numel()]))
    }

    fn keep(&self) -> Keep {
        Keep::INPUTS
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        g.through(|x| self.by_primitives(x))
    }

    fn eval(&self, x: &[View<'_>], to: &mut ViewMut<'_>) -> Result<(), OpError> {
        let Sequence { steps, batch, hidden: n, .. } = self.forward().net(x[0]);
        let [y, u, _, dy] = [0, 1, 2, 3].map(|i| widened(x[i]));
        let mut values = vec![0.0; to.shape().numel()];
        let (dx, dh) = values.split_at_mut(y.len());
        for t in walk(steps, self.reverse).rev() {
            let step = t * batch * n..(t + 1) * batch * n;
            for (i, at) in step.clone().enumerate() {
                let slope = match self.activation {
                    RnnActivation::Tanh => 1.0 - y[at] * y[at],
                    RnnActivation::Relu => f64::from(u8::from(y[at] > 0.0)),
                };
                dx[at] = (dh[i] + dy[at]) * slope;
            }
            for (b, j) in (0..batch).flat_map(|b| (0..n).map(move |j| (b, j))) {
                let sums = &dx[step.clone()][b * n..][..n];
                dh[b * n + j] = sums.iter().enumerate().map(|(row, d)| d * u[row * n + j]).sum();
            }
        }
        narrow_into(&values, to);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], to: &mut ViewMut<'_>) -> bool {
        let net = self.forward().net(x[0]);
        let Some(x) = single::operands(x) else { return false };
        let u = MatRef::row_major(&x[1], net.hidden, net.hidden);
        single::result(to, |to| {
            let (dx, dh0) = to.split_at_mut(x[0].len());
            rnn_backward(net, self.activation.kernel(), &x[0], u, &x[3], [dx, dh0]);
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 2 * x[0].numel() as u64 * x[1].shape[1] as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        Some(self.by_primitives(x))
    }

    fn samples() -> Vec<Sample> {
        samples(|reverse, activation, [y, dy], u, h| {
            Sample::new(RnnSequenceGrad { reverse, activation }, [y, u, h, dy])
        })
    }
}

impl RnnSequenceGrad {
    fn forward(&self) -> RnnSequence {
        RnnSequence { reverse: self.reverse, activation: self.activation }
    }

    fn by_primitives(&self, x: &[Tensor]) -> Tensor {
        let [y, u, h0, dy] = [&x[0], &x[1], &x[2], &x[3]];
        let mut dh = h0.zeros_like();
        let mut rows = vec![];
        for t in walk(y.size(0), self.reverse).rev() {
            let (y, d) = (y.select(0, t as isize), &dh + dy.select(0, t as isize));
            let sums = match self.activation {
                RnnActivation::Tanh => d * (1.0 - y.square()),
                RnnActivation::Relu => y.gt(0.0).where_(&d, 0.0),
            };
            dh = sums.matmul(u);
            rows.push(sums);
        }
        joined(rows, self.reverse, &[dh])
    }
}
