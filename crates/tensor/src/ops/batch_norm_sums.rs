//! `batch_norm_sums`: (Σ dy u, Σ dy) over each channel (axis 1), for u = (x − mean) / √(variance + eps): the
//! gradients of weight and bias of batch normalisation.

use thalweg_core::{View, ViewMut};
use thalweg_kernels::rows::batch;

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, arity, require_same_dtype, require_same_shape};
use crate::ops::batch_norm::{Units, by_primitives, reduced, require_channels, sizes};
use crate::ops::primitive::{Cost, Grad, Keep, Number, Primitive, Vjp};
use crate::ops::rowwise::{narrow_into, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{BatchNorm, BatchNormGrad, single};
use crate::tensor::Tensor;

/// x, dy: (batch, channels, …) → (2, channels).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct BatchNormSums {
    /// Added to the variance.
    pub eps: Number,
}

impl Primitive for BatchNormSums {
    const NAME: &'static str = "batch_norm_sums";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x, dy] = arity(Self::NAME, x)?;
        require_channels(Self::NAME, x)?;
        require_same_dtype(Self::NAME, x, dy)?;
        require_same_shape(Self::NAME, x, dy)?;
        Ok(x.with_shape([2, x.shape[1]]))
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::input(1)).and(Keep::OUTPUT)
    }

    /// With (a, b) the incoming gradient, Σ dy (u a + b) is pulled back: to dy it is batch normalisation with
    /// weight a and bias b, to x the gradient of that.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (x, dy, eps) = (g.x(0), g.x(1), self.eps);
        let (a, b) = (g.dy().select(0, 0), g.dy().select(0, 1));
        g.pair(|| run(BatchNormGrad { eps }, &[x, dy, &g.y(), &a]), || run(BatchNorm { eps }, &[x, &a, &b]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let (units, dy) = (Units::of(x[0], self.eps), widened(x[1]));
        let channels = units.scale.len();
        let mut sums = vec![0.0; 2 * channels];
        for (i, (u, dy)) in units.u.iter().zip(dy).enumerate() {
            sums[units.channel(i)] += dy * u;
            sums[channels + units.channel(i)] += dy;
        }
        narrow_into(&sums, y);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let sizes = sizes(x[0].shape());
        let Some(x) = single::operands(x) else { return false };
        single::result(y, |y| batch::batch_norm_sums(&x[0], &x[1], sizes, self.eps.0, y))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 8 * x[0].numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        let axes = reduced(&x[0]);
        let along = &x[1] * by_primitives(&x[0], self.eps).0;
        Some(Tensor::stack(&[along.sum(&axes[..]), x[1].sum(&axes[..])], 0))
    }

    fn samples() -> Vec<Sample> {
        let op = BatchNormSums { eps: Number(1e-2) };
        let call = |shape: &[usize]| Sample::new(op, [Draw::any(shape), Draw::any(shape)]);
        vec![call(&[4, 3]), call(&[2, 3, 2, 2]), call(&[1, 2, 17]), call(&[0, 2, 3])]
    }
}
