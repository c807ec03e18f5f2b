//! `layer_norm_grad`: the gradient of layer normalisation with respect to x: with g = dy · weight and
//! u = (x − mean) / σ, dx = (g − mean(g) − u mean(g u)) / σ over each row of the last axis.

use thalweg_core::{View, ViewMut};
use thalweg_kernels::rows::norm_backward::{NormGrads, layer_norm_backward};
use thalweg_kernels::rows::reduce::mean_and_variance;
use thalweg_kernels::scratch::Scratch;

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, require_same_dtype, require_same_shape};
use crate::ops::layer_norm::infer_affine;
use crate::ops::primitive::{Cost, Grad, Keep, Number, Primitive, Vjp};
use crate::ops::rowwise::{eval_rows, fast_rows, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{LayerNorm, Op};
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
        KEEP
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let x = g.x(0);
        let scale = (x.var_keepdim(-1, 0) + self.eps.0).rsqrt();
        grad_of_grad(g, &run(LayerNorm { eps: self.eps }, &[x]), &scale, |dy| run(*self, &[x, dy]))
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
        fast_rows(x, y, |x, cols, dx| {
            let n_rows = x[0].len() / cols;
            let [mut mean, mut rstd] = [(); 2].map(|()| Scratch::filled(n_rows, 0.0));
            mean_and_variance(&x[0], cols, &mut mean, &mut rstd);
            rstd.iter_mut().for_each(|v| *v = (1.0 / (f64::from(*v) + self.eps.0).sqrt()) as f32);
            let grads = NormGrads { dx, d_weight: None, d_bias: None };
            layer_norm_backward(&x[0], &x[1], cols, x.get(2).map(|w| &**w), &mean, &rstd, grads);
        })
    }

    fn on_rows(&self, x: &[&Meta]) -> Option<(usize, Self)> {
        Some((*x[0].shape.last()?, *self))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 12 * y.numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        let centred = &x[0] - x[0].mean_keepdim(-1);
        let scale = ((&centred * &centred).mean_keepdim(-1) + self.eps.0).rsqrt();
        let g = weighted(x);
        let u = centred * &scale;
        let mean_gu = (&g * &u).mean_keepdim(-1);
        Some((&g - g.mean_keepdim(-1) - u * mean_gu) * scale)
    }

    fn samples() -> Vec<Sample> {
        grad_samples(LayerNormGrad { eps: Number(1e-2) })
    }
}

/// The calls that both norms' gradients are tried on: x, dy, perhaps weight.
pub(crate) fn grad_samples(op: impl Into<Op> + Copy) -> Vec<Sample> {
    let call = |shape: &[usize], weight: Option<usize>| {
        let weight = weight.map(|cols| Draw::any([cols]));
        Sample::new(op, [Draw::any(shape), Draw::any(shape)].into_iter().chain(weight))
    };
    vec![
        call(&[3, 5], None),
        call(&[2, 2, 4], Some(4)),
        call(&[2, 1], Some(1)),
        call(&[0, 4], Some(4)),
        call(&[2, 19], Some(19)),
    ]
}

/// What [`grad_of_grad`] reads.
pub(crate) const KEEP: Keep = Keep::input(0).and(Keep::input(1)).and(Keep::input(2)).and(Keep::OUTPUT);

/// g = dy · weight, of the operands x, dy and perhaps weight.
pub(crate) fn weighted(x: &[Tensor]) -> Tensor {
    x.get(2).map_or_else(|| x[1].clone(), |w| &x[1] * w)
}

/// The rule of both norms' gradients. Such a gradient is D(g) = s P g with the scale s and a symmetric
/// projection P that takes out u = `unit` (and, of a layer norm, the mean): the gradient with respect to g
/// is again D, here `project`, of the incoming c, and differentiating u and s in ⟨c, D(g)⟩ leaves
/// dx = −s (mean(c u) D(g) + mean(g u) D(c) + mean(c D(g)) u).
pub(crate) fn grad_of_grad(
    g: &Vjp<'_>,
    unit: &Tensor,
    scale: &Tensor,
    project: impl Fn(&Tensor) -> Tensor,
) -> Grad {
    let (c, y, weight) = (g.dy(), g.y(), (g.n_inputs() > 2).then(|| g.x(2)));
    let projected = project(c);
    let dx = g.want(0, || {
        let dy = weight.map_or_else(|| g.x(1).clone(), |w| g.x(1) * w);
        let mean = |a: &Tensor, b: &Tensor| (a * b).mean_keepdim(-1);
        -(mean(c, unit) * &y + mean(&dy, unit) * &projected + mean(c, &y) * unit) * scale
    });
    let mut grads =
        smallvec::smallvec![dx, g.want(1, || weight.map_or(projected.clone(), |w| &projected * w))];
    if weight.is_some() {
        let rows: Vec<usize> = (0..g.x(0).rank() - 1).collect();
        grads.push(g.want(2, || (g.x(1) * &projected).sum(rows)));
    }
    Grad::Inputs(grads)
}
