//! `batch_norm_grad`: the gradient of batch normalisation with respect to x: for u = (x − mean) s with
//! s = 1 / √(variance + eps) and the sums that `batch_norm_sums` makes of n values per channel,
//! dx = s weight (dy − sums₁ / n − u sums₀ / n).

use thalweg_core::{View, ViewMut};
use thalweg_kernels::rows::batch;

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, require_same_dtype, require_same_shape};
use crate::ops::batch_norm::{
    Units, by_primitives, column, reduced, require_channels, require_per_channel, sizes,
};
use crate::ops::primitive::{Cost, Grad, Keep, Number, Primitive, Vjp};
use crate::ops::rowwise::{narrow_into, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{BatchNorm, BatchNormSums, single};
use crate::tensor::Tensor;

/// x, dy: (batch, channels, …), sums: (2, channels), optionally weight: (channels) → dx.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct BatchNormGrad {
    /// Added to the variance.
    pub eps: Number,
}

impl Primitive for BatchNormGrad {
    const NAME: &'static str = "batch_norm_grad";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x, dy, sums, weight @ ..] = x else {
            return Err(OpError::Arity { op: Self::NAME, want: 3, got: x.len() });
        };
        require_channels(Self::NAME, x)?;
        require_same_dtype(Self::NAME, x, dy)?;
        require_same_shape(Self::NAME, x, dy)?;
        let channels = x.shape[1];
        require_per_channel(Self::NAME, x, sums, &[2, channels])?;
        weight.iter().try_for_each(|w| require_per_channel(Self::NAME, x, w, &[channels]))?;
        Ok((*x).clone())
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::input(1)).and(Keep::input(2)).and(Keep::input(3))
    }

    /// With z the incoming gradient, D(z) that of a batch norm without weight, and y the result: that of dy is
    /// z s weight, that of the sums −weight s (Σ z u, Σ z) / n, that of the weight Σ z y / weight; and x, in s
    /// and u, gets −s (u Σ z y / n + weight D(z) sums₀ / n).
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (x, dy, sums, z, eps) = (g.x(0), g.x(1), g.x(2), g.dy(), self.eps);
        if x.numel() == 0 {
            return Grad::zero(g.n_inputs());
        }
        let axes = reduced(x);
        let n = (x.numel() / x.size(1)) as f64;
        let scale = (x.var(&axes[..], 0) + eps.0).rsqrt();
        let weight = (g.n_inputs() > 3).then(|| g.x(3));
        let weighted = |t: Tensor| weight.map_or(t.clone(), |w| t * w);
        let z_sums = run(BatchNormSums { eps }, &[x, z]);
        let projected = || (z * run(*self, &[x, dy, sums])).sum(&axes[..]);
        let dx = g.want(0, || {
            let along = weighted(&scale * sums.select(0, 0)) / -n;
            let unit = run(BatchNorm { eps }, &[x, &(weighted(&scale * projected()) / -n)]);
            unit + run(*self, &[x, z, &z_sums, &along])
        });
        let mut grads = smallvec::smallvec![
            dx,
            g.want(1, || z * column(&weighted(scale.clone()), x)),
            g.want(2, || &z_sums * weighted(scale.clone()) / -n),
        ];
        if weight.is_some() {
            grads.push(g.want(3, projected));
        }
        Grad::Inputs(grads)
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let (units, dy, sums) = (Units::of(x[0], self.eps), widened(x[1]), widened(x[2]));
        let weight = x.get(3).map(|w| widened(*w));
        let channels = units.scale.len();
        let n = dy.len() as f64 / channels as f64;
        let dx = |(i, dy): (usize, &f64)| {
            let c = units.channel(i);
            let by = units.scale[c] * weight.as_ref().map_or(1.0, |w| w[c]);
            by * (dy - sums[channels + c] / n - units.u[i] * sums[c] / n)
        };
        narrow_into(&dy.iter().enumerate().map(dx).collect::<Vec<f64>>(), y);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let sizes = sizes(x[0].shape());
        let Some(x) = single::operands(x) else { return false };
        let weight = x.get(3).map(|w| &**w);
        single::result(y, |dx| {
            batch::batch_norm_backward(&x[0], &x[1], sizes, &x[2], weight, self.eps.0, dx);
        })
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 9 * y.numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        if x[0].numel() == 0 {
            return Some(x[0].clone());
        }
        let n = (x[0].numel() / x[0].size(1)) as f64;
        let (u, scale) = by_primitives(&x[0], self.eps);
        let [along, sum] = [0, 1].map(|i| column(&(x[2].select(0, i) / n), &x[0]));
        let dx = (&x[1] - sum - u * along) * scale;
        Some(x.get(3).map_or(dx.clone(), |w| dx * column(w, &x[0])))
    }

    fn samples() -> Vec<Sample> {
        let call = |shape: &[usize], vectors: usize| {
            let vectors = std::iter::repeat_n(Draw::any([shape[1]]), vectors);
            let x = [Draw::any(shape), Draw::any(shape), Draw::any([2, shape[1]])];
            Sample::new(BatchNormGrad { eps: Number(1e-2) }, x.into_iter().chain(vectors))
        };
        vec![call(&[4, 3], 0), call(&[2, 3, 2, 2], 1), call(&[1, 2, 17], 1), call(&[0, 2, 3], 1)]
    }
}
