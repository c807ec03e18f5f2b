//! `rms_norm`: y = x / √(mean(x²) + eps) · weight over each row of the last axis.

use thalweg_core::{Shape, View, ViewMut};
use thalweg_kernels::rows;

use crate::apply::run;
use crate::error::OpError;
use crate::meta::Meta;
use crate::ops::RmsNormGrad;
use crate::ops::layer_norm::{as_row, infer_affine, split_shape};
use crate::ops::primitive::{Cost, Grad, Keep, Number, Primitive, Vjp};
use crate::ops::rowwise::{eval_rows, fast_rows, widened};
use crate::ops::sample::{Draw, Sample};
use crate::tensor::Tensor;

/// x: (…, cols), optionally weight: (cols).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct RmsNorm {
    /// Added to the mean of squares.
    pub eps: Number,
}

impl Primitive for RmsNorm {
    const NAME: &'static str = "rms_norm";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        infer_affine(Self::NAME, x, 1)
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::input(1))
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (x, dy, n) = (g.x(0), g.dy(), g.n_inputs());
        let dx = g.want(0, || {
            let op = RmsNormGrad { eps: self.eps };
            if n > 1 { run(op, &[x, dy, g.x(1)]) } else { run(op, &[x, dy]) }
        });
        let mut grads = smallvec::smallvec![dx];
        if n > 1 {
            let rows = || (0..x.rank() - 1).collect::<Vec<usize>>();
            grads.push(g.want(1, || (dy * run(*self, &[x])).sum(rows())));
        }
        Grad::Inputs(grads)
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let weight = x.get(1).map(|w| widened(*w));
        eval_rows([x[0]], y, |[x], y| {
            let mean_square = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
            let scale = 1.0 / (mean_square + self.eps.0).sqrt();
            for (i, (y, x)) in y.iter_mut().zip(x).enumerate() {
                *y = x * scale * weight.as_ref().map_or(1.0, |w| w[i]);
            }
        });
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        fast_rows(x, y, |x, cols, y| {
            rows::norm::rms_norm(&x[0], cols, x.get(1).map(|w| &**w), self.eps.0 as f32, y, None);
        })
    }

    fn on_rows(&self, x: &[&Meta]) -> Option<(usize, Self)> {
        Some((*x[0].shape.last()?, *self))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 4 * y.numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        let y = &x[0] * ((&x[0] * &x[0]).mean_keepdim(-1) + self.eps.0).rsqrt();
        Some(x.get(1).map_or(y.clone(), |w| y * w))
    }

    fn samples() -> Vec<Sample> {
        let op = RmsNorm { eps: Number(1e-2) };
        vec![
            Sample::new(op, [Draw::any([3, 5])]),
            Sample::new(op, [Draw::any([2, 2, 4]), Draw::any([4])]),
            Sample::new(op, [Draw::any([2, 1]), Draw::any([1])]),
            Sample::new(op, [Draw::any([0, 4]), Draw::any([4])]),
            Sample::new(op, [Draw::any([2, 37]), Draw::any([37])]),
        ]
    }
}

impl Tensor {
    /// Divides by the root mean square over the last axes, whose sizes are `normalized_shape`, then
    /// scales.
    #[track_caller]
    pub fn rms_norm(&self, normalized_shape: impl Into<Shape>, weight: Option<&Tensor>, eps: f64) -> Tensor {
        let (op, normalized) = (RmsNorm::NAME, normalized_shape.into());
        let x = self.as_float();
        let (lead, cols) = split_shape(op, &x, &normalized);
        let rows = x.reshape([lead.numel(), cols]);
        let norm = RmsNorm { eps: Number(eps) };
        let y = match weight {
            Some(w) => run(norm, &[&rows, &as_row(op, w, &normalized, &x)]),
            None => run(norm, &[&rows]),
        };
        y.reshape(self.shape())
    }
}
