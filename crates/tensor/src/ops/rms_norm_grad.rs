//! `rms_norm_grad`: the gradient of RMS normalisation with respect to x: with g = dy · weight, r the root
//! mean square and u = x / r, dx = (g − u mean(g u)) / r over each row of the last axis.

use thalweg_core::{View, ViewMut};
use thalweg_kernels::rows::norm_backward::{NormGrads, rms_norm_backward};
use thalweg_kernels::rows::reduce::sum_of_squares;

use crate::error::OpError;
use crate::meta::Meta;
use crate::ops::layer_norm_grad::infer_grad;
use crate::ops::primitive::{Cost, Grad, Keep, Number, Primitive, Vjp};
use crate::ops::rowwise::{eval_rows, grad_by_body, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::single;
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
        Keep::input(0).and(Keep::input(1)).and(Keep::input(2))
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        grad_by_body(g, |x| self.by_primitives(x))
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
        let cols = y.shape().last().copied().unwrap_or(1);
        let operands: Option<Vec<single::Single<'_>>> = x.iter().map(|x| single::operand(*x)).collect();
        let Some(x) = operands.filter(|x| !x[0].is_empty()) else { return false };
        let mut rstd = vec![0.0; x[0].len() / cols];
        sum_of_squares(&x[0], cols, &mut rstd);
        let from_sum = |s: f32| (1.0 / (f64::from(s) / cols as f64 + self.eps.0).sqrt()) as f32;
        rstd.iter_mut().for_each(|v| *v = from_sum(*v));
        let weight = x.get(2).map(|w| &**w);
        single::result(y, |dx| {
            let grads = NormGrads { dx, d_weight: None, d_bias: None };
            rms_norm_backward(&x[0], &x[1], cols, weight, &rstd, grads);
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 9 * y.numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        Some(self.by_primitives(x))
    }

    fn samples() -> Vec<Sample> {
        let op = RmsNormGrad { eps: Number(1e-2) };
        vec![
            Sample::new(op, [Draw::any([3, 5]), Draw::any([3, 5])]),
            Sample::new(op, [Draw::any([2, 2, 4]), Draw::any([2, 2, 4]), Draw::any([4])]),
            Sample::new(op, [Draw::any([2, 1]), Draw::any([2, 1]), Draw::any([1])]),
            Sample::new(op, [Draw::any([0, 4]), Draw::any([0, 4]), Draw::any([4])]),
            Sample::new(op, [Draw::any([2, 19]), Draw::any([2, 19]), Draw::any([19])]),
        ]
    }
}

impl RmsNormGrad {
    fn by_primitives(&self, x: &[Tensor]) -> Tensor {
        let scale = ((&x[0] * &x[0]).mean_keepdim(-1) + self.eps.0).rsqrt();
        let g = x.get(2).map_or_else(|| x[1].clone(), |w| &x[1] * w);
        let u = &x[0] * &scale;
        let mean_gu = (&g * &u).mean_keepdim(-1);
        (&g - u * mean_gu) * scale
    }
}
