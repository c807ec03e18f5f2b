//! `layer_norm`: y = (x − mean) / √(variance + eps) · weight + bias over each row of the last axis.

use thalweg_core::{Shape, View, ViewMut};
use thalweg_kernels::rows;

use crate::apply::run;
use crate::error::{OpError, fail};
use crate::meta::{Meta, require_float, require_same_dtype};
use crate::ops::LayerNormGrad;
use crate::ops::primitive::{Cost, Grad, Keep, Number, Primitive, Vjp};
use crate::ops::rowwise::{eval_rows, fast_rows, require_rows, widened};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// x: (…, cols), optionally weight: (cols), optionally bias: (cols).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct LayerNorm {
    /// Added to the variance.
    pub eps: Number,
}

/// Checks x and up to `most` vectors of as many elements as x has columns.
pub(crate) fn infer_affine(op: &'static str, x: &[&Meta], most: usize) -> Result<Meta, OpError> {
    let Some((x, vectors)) = x.split_first().filter(|(_, v)| v.len() <= most) else {
        return Err(OpError::Arity { op, want: 1 + most, got: x.len() });
    };
    require_float(op, x)?;
    let cols = require_rows(op, x)?;
    for v in vectors {
        require_same_dtype(op, x, v)?;
        if *v.shape != [cols] {
            let hint = "weight and bias have one number per element of the normalised shape";
            return Err(OpError::Shapes { op, left: x.shape.clone(), right: v.shape.clone(), hint });
        }
    }
    Ok((*x).clone())
}

impl Primitive for LayerNorm {
    const NAME: &'static str = "layer_norm";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        infer_affine(Self::NAME, x, 2)
    }

    /// Mean and deviation are computed again: reading x twice costs less than keeping more of it.
    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::input(1))
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (x, dy, n) = (g.x(0), g.dy(), g.n_inputs());
        let rows = || (0..x.rank() - 1).collect::<Vec<usize>>();
        let dx = g.want(0, || {
            let op = LayerNormGrad { eps: self.eps };
            if n > 1 { run(op, &[x, dy, g.x(1)]) } else { run(op, &[x, dy]) }
        });
        let mut grads = smallvec::smallvec![dx];
        if n > 1 {
            grads.push(g.want(1, || (dy * run(*self, &[x])).sum(rows())));
        }
        if n > 2 {
            grads.push(g.want(2, || dy.sum(rows())));
        }
        Grad::Inputs(grads)
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let (weight, bias) = (x.get(1).map(|w| widened(*w)), x.get(2).map(|b| widened(*b)));
        eval_rows([x[0]], y, |[x], y| {
            let n = x.len() as f64;
            let mean = x.iter().sum::<f64>() / n;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let scale = 1.0 / (variance + self.eps.0).sqrt();
            for (i, (y, x)) in y.iter_mut().zip(x).enumerate() {
                let (w, b) = (weight.as_ref().map_or(1.0, |w| w[i]), bias.as_ref().map_or(0.0, |b| b[i]));
                *y = (x - mean) * scale * w + b;
            }
        });
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        fast_rows(x, y, |x, cols, y| {
            let (weight, bias) = (x.get(1).map(|w| &**w), x.get(2).map(|b| &**b));
            rows::norm::layer_norm(&x[0], cols, weight, bias, self.eps.0 as f32, y, None);
        })
    }

    fn on_rows(&self, x: &[&Meta]) -> Option<(usize, Self)> {
        Some((*x[0].shape.last()?, *self))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 7 * y.numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        let centred = &x[0] - x[0].mean_keepdim(-1);
        let y = &centred * ((&centred * &centred).mean_keepdim(-1) + self.eps.0).rsqrt();
        let y = x.get(1).map_or(y.clone(), |w| y * w);
        Some(x.get(2).map_or(y.clone(), |b| y + b))
    }

    fn samples() -> Vec<Sample> {
        let op = LayerNorm { eps: Number(1e-2) };
        let call = |shape: &[usize], vectors: usize| {
            let cols = shape[shape.len() - 1];
            let vectors = std::iter::repeat_n(Draw::any([cols]), vectors);
            Sample::new(op, std::iter::once(Draw::any(shape)).chain(vectors))
        };
        vec![
            call(&[3, 5], 0),
            call(&[2, 2, 4], 1),
            call(&[3, 6], 2),
            call(&[2, 1], 2),
            call(&[0, 4], 2),
            call(&[2, 37], 2),
        ]
    }
}

/// The leading sizes of x, and the number of elements of its last axes, which must be `normalized`.
#[track_caller]
pub(crate) fn split_shape(op: &'static str, x: &Tensor, normalized: &Shape) -> (Shape, usize) {
    let lead = x.rank().checked_sub(normalized.rank()).filter(|_| normalized.rank() > 0);
    match lead {
        Some(lead) if x.shape()[lead..] == normalized[..] => (x.shape()[..lead].into(), normalized.numel()),
        _ => {
            let hint = "the last axes of the operand must have the normalised shape";
            fail(OpError::Shapes { op, left: x.shape().clone(), right: normalized.clone(), hint })
        }
    }
}

/// A weight or bias of the normalised shape as one row.
#[track_caller]
pub(crate) fn as_row(op: &'static str, v: &Tensor, normalized: &Shape, like: &Tensor) -> Tensor {
    if v.shape() != normalized {
        let hint = "weight and bias must have the normalised shape";
        fail(OpError::Shapes { op, left: normalized.clone(), right: v.shape().clone(), hint });
    }
    v.to_dtype(like.dtype()).reshape(normalized.numel())
}

impl Tensor {
    /// Normalises over the last axes, whose sizes are `normalized_shape`, then scales and shifts.
    ///
    /// ```
    /// use thalweg_tensor::Tensor;
    /// let x = Tensor::from([[1.0f32, 3.0], [-5.0, 5.0]]);
    /// assert_eq!(x.layer_norm(2, None, None, 0.0).to_vec::<f32>(), [-1.0, 1.0, -1.0, 1.0]);
    /// ```
    #[track_caller]
    pub fn layer_norm(
        &self,
        normalized_shape: impl Into<Shape>,
        weight: Option<&Tensor>,
        bias: Option<&Tensor>,
        eps: f64,
    ) -> Tensor {
        let (op, normalized) = (LayerNorm::NAME, normalized_shape.into());
        let x = self.as_float();
        let (lead, cols) = split_shape(op, &x, &normalized);
        let rows = x.reshape([lead.numel(), cols]);
        let row = |v: &Tensor| as_row(op, v, &normalized, &x);
        let (weight, bias) = (weight.map(row), bias.map(row));
        let norm = LayerNorm { eps: Number(eps) };
        let y = match (&weight, &bias) {
            (None, None) => run(norm, &[&rows]),
            (Some(w), None) => run(norm, &[&rows, w]),
            (Some(w), Some(b)) => run(norm, &[&rows, w, b]),
            (None, Some(b)) => run(norm, &[&rows]) + b,
        };
        y.reshape(self.shape())
    }
}
