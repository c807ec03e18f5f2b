//! `attention_grad`: the gradients of attention with respect to q, k and v, one after the other in one vector. With
//! the weights P and S = scale · P (dy vᵀ − Σ P dy vᵀ), they are S k, Sᵀ q and Pᵀ dy.

use smallvec::SmallVec;
use thalweg_core::{View, ViewMut};
use thalweg_kernels::attention::{Gradients, attention_backward};

use crate::error::OpError;
use crate::functions::attention::attend;
use crate::meta::{Meta, arity, require_same_dtype};
use crate::ops::attention::{
    Attention, MaskOperand, Operand, Reference, Sizes, check_mask, products, samples,
};
use crate::ops::primitive::{Cost, Grad, Keep, Number, Primitive, Vjp};
use crate::ops::rowwise::{narrow_into, widened};
use crate::ops::sample::Sample;
use crate::ops::single;
use crate::tensor::Tensor;

/// q, k, v, dy and, after these, perhaps a mask, as in [`Attention`] → (elements of q, k and v together).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct AttentionGrad {
    /// The factor of the scores.
    pub scale: Number,
    /// Whether query i sees only the keys 0 ..= i.
    pub causal: bool,
}

impl AttentionGrad {
    fn forward(&self) -> Attention {
        Attention { scale: self.scale, causal: self.causal }
    }
}

impl Primitive for AttentionGrad {
    const NAME: &'static str = "attention_grad";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let (x, mask) = x.split_at(x.len().min(4));
        let [q, k, v, dy] = arity(Self::NAME, x)?;
        let Sizes { out, .. } = Sizes::of(Self::NAME, q, k, v)?;
        check_mask(Self::NAME, q, k, mask)?;
        require_same_dtype(Self::NAME, q, dy)?;
        if dy.shape != q.shape.with(q.shape.rank() - 1, out) {
            let hint = "the gradient has the shape of the result: (…, queries, width of the values)";
            return Err(OpError::Shapes {
                op: Self::NAME,
                left: q.shape.clone(),
                right: dy.shape.clone(),
                hint,
            });
        }
        Ok(q.with_shape([q.numel() + k.numel() + v.numel()]))
    }

    fn keep(&self) -> Keep {
        Keep::INPUTS
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        g.through(|x| self.by_primitives(x))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let reference = Reference::new(self.forward(), x, x.get(4));
        let Sizes { queries, keys, width, out } = reference.sizes;
        let dy = widened(x[3]);
        let mut values = vec![0.0; y.shape().numel()];
        let (dq, rest) = values.split_at_mut(reference.q.len());
        let (dk, dv) = rest.split_at_mut(reference.k.len());
        for row in 0..dq.len().checked_div(width).unwrap_or(0) {
            let (p, dy) = (reference.weights(row), &dy[row * out..][..out]);
            let first = row / queries * keys;
            let dot = |key: usize| {
                let v = &reference.v[(first + key) * out..][..out];
                v.iter().zip(dy).map(|(v, dy)| v * dy).sum::<f64>()
            };
            let mean: f64 = p.iter().enumerate().map(|(key, p)| p * dot(key)).sum();
            for (key, p) in p.iter().enumerate() {
                let s = self.scale.0 * p * (dot(key) - mean);
                for c in 0..width {
                    dq[row * width + c] += s * reference.k[(first + key) * width + c];
                    dk[(first + key) * width + c] += s * reference.q[row * width + c];
                }
                dy.iter().enumerate().for_each(|(c, dy)| dv[(first + key) * out + c] += p * dy);
            }
        }
        narrow_into(&values, y);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let (n_q, n_k) = (x[0].shape().numel(), x[1].shape().numel());
        let (x, mask) = x.split_at(4);
        let masked = mask.first().map(|m| MaskOperand::new(*m, x[0].shape()));
        let Some(x) = x.iter().map(|x| Operand::new(*x)).collect::<Option<SmallVec<[_; 4]>>>() else {
            return false;
        };
        if matches!(masked, Some(None)) {
            return false;
        }
        let mask = masked.flatten();
        let [q, k, v, dy] = [0, 1, 2, 3].map(|i| x[i].heads());
        single::result(y, |y| {
            let (dq, rest) = y.split_at_mut(n_q);
            let (dk, dv) = rest.split_at_mut(n_k);
            attention_backward(q, k, v, dy, self.forward().scores(&mask), Gradients { dq, dk, dv });
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 5 * products(&self.forward(), x), bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        Some(self.by_primitives(x))
    }

    fn samples() -> Vec<Sample> {
        samples(|op, x, mask| {
            Sample::new(AttentionGrad { scale: op.scale, causal: op.causal }, x.into_iter().chain(mask))
        })
    }
}

impl AttentionGrad {
    fn by_primitives(&self, x: &[Tensor]) -> Tensor {
        let [q, k, v, dy] = [&x[0], &x[1], &x[2], &x[3]];
        let (p, ds) = self.of_scores([q, k, v], dy, x.get(4));
        let ds = ds * self.scale.0;
        let grads = [ds.matmul(k), ds.t().matmul(q), p.t().matmul(dy)];
        Tensor::concat(&grads.map(|d| d.flatten(0, -1)), 0)
    }

    /// The weights, and the gradient of the scores after scale and mask: (…, queries, keys) each.
    pub(crate) fn of_scores(&self, x: [&Tensor; 3], dy: &Tensor, mask: Option<&Tensor>) -> (Tensor, Tensor) {
        let [q, k, v] = x;
        let p = attend(q, k, v, &self.forward().options(mask)).1;
        let dp = dy.matmul(&v.t());
        let ds = &p * (&dp - (&p * &dp).sum_keepdim(-1));
        (p, ds)
    }
}
