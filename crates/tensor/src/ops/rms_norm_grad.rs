//! `rms_norm_grad`: the gradient of RMS normalisation with respect to x: with g = dy · weight, r the root
//! mean square and u = x / r, dx = (g − u mean(g u)) / r over each row of the last axis.

use thalweg_core::{View, ViewMut};
use thalweg_kernels::rows::norm_backward::{NormGrads, rms_norm_backward};
use thalweg_kernels::rows::reduce::sum_of_squares;
use thalweg_kernels::scratch::Scratch;

use crate::apply::run;
use crate::error::OpError;
use crate::meta::Meta;
use crate::ops::RmsNorm;
use crate::ops::layer_norm_grad::{KEEP, grad_of_grad, grad_samples, infer_grad, weighted};
use crate::ops::primitive::{Cost, Grad, Keep, Number, Primitive, Vjp};
use crate::ops::rowwise::{eval_rows, fast_rows, widened};
use crate::ops::sample::Sample;
use crate::tensor::Tensor;

/// x, dy, optionally weight → dx.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct RmsNormGrad {
    /// Added to the mean of squares.
    pub eps: Number,
}

impl Primitive for RmsNormGrad {
    const NAME: &'static str = "rms_norm_grad";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        infer_grad(Self::NAME, x)
    }

    fn keep(&self) -> Keep {
        KEEP
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let x = g.x(0);
        let scale = (x.square().mean_keepdim(-1) + self.eps.0).rsqrt();
        grad_of_grad(g, &run(RmsNorm { eps: self.eps }, &[x]), &scale, |dy| run(*self, &[x, dy]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let weight = x.get(2).map(|w| widened(*w));
        eval_rows([x[0], x[1]], y, |[x, dy], dx| {
            let n = x.len() as f64;
            let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f64>() / n + self.eps.0).sqrt();
            let g = |i: usize| dy[i] * weight.as_ref().map_or(1.0, |w| w[i]);
            let mean_gu = (0..x.len()).map(|i| g(i) * x[i] * scale).sum::<f64>() / n;
            dx.iter_mut().enumerate().for_each(|(i, dx)| *dx = (g(i) - x[i] * scale * mean_gu) * scale);
        });
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        fast_rows(x, y, |x, cols, dx| {
            let mut rstd = Scratch::filled(x[0].len() / cols, 0.0);
            sum_of_squares(&x[0], cols, &mut rstd);
            let from_sum = |s: f32| (1.0 / (f64::from(s) / cols as f64 + self.eps.0).sqrt()) as f32;
            rstd.iter_mut().for_each(|v| *v = from_sum(*v));
            let grads = NormGrads { dx, d_weight: None, d_bias: None };
            rms_norm_backward(&x[0], &x[1], cols, x.get(2).map(|w| &**w), &rstd, grads);
        })
    }

    fn on_rows(&self, x: &[&Meta]) -> Option<(usize, Self)> {
        Some((*x[0].shape.last()?, *self))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 9 * y.numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        let scale = ((&x[0] * &x[0]).mean_keepdim(-1) + self.eps.0).rsqrt();
        let g = weighted(x);
        let u = &x[0] * &scale;
        let mean_gu = (&g * &u).mean_keepdim(-1);
        Some((&g - u * mean_gu) * scale)
    }

    fn samples() -> Vec<Sample> {
        grad_samples(RmsNormGrad { eps: Number(1e-2) })
    }
}
