//! `layer_norm_grad`: the gradient of layer normalisation with respect to x: with g = dy · weight and
//! u = (x − mean) / σ, dx = (g − mean(g) − u mean(g u)) / σ over each row of the last axis.

use thalweg_core::{View, ViewMut};
use thalweg_kernels::rows::norm_backward::{NormGrads, layer_norm_backward};
use thalweg_kernels::rows::reduce::mean_and_variance;

use crate::error::OpError;
use crate::meta::{Meta, require_same_dtype, require_same_shape};
use crate::ops::layer_norm::infer_affine;
use crate::ops::primitive::{Cost, Grad, Keep, Number, Primitive, Vjp};
use crate::ops::rowwise::{eval_rows, grad_by_body, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::single;
use crate::tensor::Tensor;

/// x, dy, optionally weight → dx.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct LayerNormGrad {
    /// Added to the variance.
    pub eps: Number,
}

/// Checks x, dy and a weight.
pub(crate) fn infer_grad(op: &'static str, x: &[&Meta]) -> Result<Meta, OpError> {
    let [x, dy, rest @ ..] = x else { return Err(OpError::Arity { op, want: 2, got: x.len() }) };
    require_same_dtype(op, x, dy)?;
    require_same_shape(op, x, dy)?;
    let with_weight: Vec<&Meta> = std::iter::once(*x).chain(rest.iter().copied()).collect();
    infer_affine(op, &with_weight, 1)
}

impl Primitive for LayerNormGrad {
    const NAME: &'static str = "layer_norm_grad";

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
            let mean = x.iter().sum::<f64>() / n;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let scale = 1.0 / (variance + self.eps.0).sqrt();
            let g = |i: usize| dy[i] * weight.as_ref().map_or(1.0, |w| w[i]);
            let u = |i: usize| (x[i] - mean) * scale;
            let mean_g = (0..x.len()).map(g).sum::<f64>() / n;
            let mean_gu = (0..x.len()).map(|i| g(i) * u(i)).sum::<f64>() / n;
            dx.iter_mut().enumerate().for_each(|(i, dx)| *dx = (g(i) - mean_g - u(i) * mean_gu) * scale);
        });
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let cols = y.shape().last().copied().unwrap_or(1);
        let operands: Option<Vec<single::Single<'_>>> = x.iter().map(|x| single::operand(*x)).collect();
        let Some(x) = operands.filter(|x| !x[0].is_empty()) else { return false };
        let n_rows = x[0].len() / cols;
        let (mut mean, mut rstd) = (vec![0.0; n_rows], vec![0.0; n_rows]);
        mean_and_variance(&x[0], cols, &mut mean, &mut rstd);
        rstd.iter_mut().for_each(|v| *v = (1.0 / (f64::from(*v) + self.eps.0).sqrt()) as f32);
        let weight = x.get(2).map(|w| &**w);
        single::result(y, |dx| {
            let grads = NormGrads { dx, d_weight: None, d_bias: None };
            layer_norm_backward(&x[0], &x[1], cols, weight, &mean, &rstd, grads);
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 12 * y.numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        Some(self.by_primitives(x))
    }

    fn samples() -> Vec<Sample> {
        let op = LayerNormGrad { eps: Number(1e-2) };
        vec![
            Sample::new(op, [Draw::any([3, 5]), Draw::any([3, 5])]),
            Sample::new(op, [Draw::any([2, 2, 4]), Draw::any([2, 2, 4]), Draw::any([4])]),
            Sample::new(op, [Draw::any([2, 1]), Draw::any([2, 1]), Draw::any([1])]),
            Sample::new(op, [Draw::any([0, 4]), Draw::any([0, 4]), Draw::any([4])]),
            Sample::new(op, [Draw::any([2, 19]), Draw::any([2, 19]), Draw::any([19])]),
        ]
    }
}

impl LayerNormGrad {
    fn by_primitives(&self, x: &[Tensor]) -> Tensor {
        let centred = &x[0] - x[0].mean_keepdim(-1);
        let scale = ((&centred * &centred).mean_keepdim(-1) + self.eps.0).rsqrt();
        let g = x.get(2).map_or_else(|| x[1].clone(), |w| &x[1] * w);
        let u = centred * &scale;
        let mean_gu = (&g * &u).mean_keepdim(-1);
        (&g - g.mean_keepdim(-1) - u * mean_gu) * scale
    }
}
