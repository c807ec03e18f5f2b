//! `batch_norm`: y = (x − mean) / √(variance + eps) · weight + bias, mean and variance those of each channel (axis 1)
//! over the batch (axis 0) and all further axes.

use thalweg_core::{Shape, View, ViewMut};
use thalweg_kernels::rows::batch;

use crate::apply::run;
use crate::error::OpError;
use crate::meta::{Meta, require_float, require_same_dtype};
use crate::ops::primitive::{Cost, Grad, Keep, Number, Primitive, Vjp};
use crate::ops::rowwise::{narrow_into, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{BatchNormGrad, BatchNormSums, single};
use crate::tensor::Tensor;

/// x: (batch, channels, …), optionally weight: (channels), optionally bias: (channels).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct BatchNorm {
    /// Added to the variance.
    pub eps: Number,
}

impl Primitive for BatchNorm {
    const NAME: &'static str = "batch_norm";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let Some((x, vectors)) = x.split_first().filter(|(_, v)| v.len() <= 2) else {
            return Err(OpError::Arity { op: Self::NAME, want: 3, got: x.len() });
        };
        require_channels(Self::NAME, x)?;
        vectors.iter().try_for_each(|v| require_per_channel(Self::NAME, x, v, &[x.shape[1]]))?;
        Ok((*x).clone())
    }

    /// Mean and deviation are computed again: reading x twice costs less than keeping more of it.
    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::input(1))
    }

    /// The gradients of weight and bias are sums that the gradient of x needs as well.
    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let (x, dy, n) = (g.x(0), g.dy(), g.n_inputs());
        let sums = run(BatchNormSums { eps: self.eps }, &[x, dy]);
        let dx = g.want(0, || {
            let op = BatchNormGrad { eps: self.eps };
            if n > 1 { run(op, &[x, dy, &sums, g.x(1)]) } else { run(op, &[x, dy, &sums]) }
        });
        let vectors = (1..n).map(|i| g.want(i, || sums.select(0, i as isize - 1)));
        Grad::Inputs(std::iter::once(dx).chain(vectors).collect())
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let (weight, bias) = (x.get(1).map(|w| widened(*w)), x.get(2).map(|b| widened(*b)));
        let units = Units::of(x[0], self.eps);
        let affine = |(i, u): (usize, &f64)| {
            let c = units.channel(i);
            u * weight.as_ref().map_or(1.0, |w| w[c]) + bias.as_ref().map_or(0.0, |b| b[c])
        };
        narrow_into(&units.u.iter().enumerate().map(affine).collect::<Vec<f64>>(), y);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let sizes = sizes(x[0].shape());
        let Some(x) = single::operands(x) else { return false };
        let (weight, bias) = (x.get(1).map(|w| &**w), x.get(2).map(|b| &**b));
        single::result(y, |y| batch::batch_norm(&x[0], sizes, weight, bias, self.eps.0, y))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: 7 * y.numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn body(&self, x: &[Tensor]) -> Option<Tensor> {
        let y = by_primitives(&x[0], self.eps).0;
        let y = x.get(1).map_or(y.clone(), |w| y * column(w, &x[0]));
        Some(x.get(2).map_or(y.clone(), |b| y + column(b, &x[0])))
    }

    fn samples() -> Vec<Sample> {
        let call = |shape: &[usize], vectors: usize| {
            let vectors = std::iter::repeat_n(Draw::any([shape[1]]), vectors);
            Sample::new(BatchNorm { eps: Number(1e-2) }, std::iter::once(Draw::any(shape)).chain(vectors))
        };
        vec![
            call(&[4, 3], 0),
            call(&[3, 2, 4], 1),
            call(&[2, 3, 2, 2], 2),
            call(&[1, 2, 17], 2),
            call(&[0, 2, 3], 2),
            call(&[3, 0, 2], 0),
        ]
    }
}

/// A float operand with a batch and channels.
pub(crate) fn require_channels(op: &'static str, x: &Meta) -> Result<(), OpError> {
    require_float(op, x)?;
    if x.shape.rank() < 2 {
        return Err(OpError::Rank { op, want: "at least 2 (batch, channels, …)", shape: x.shape.clone() });
    }
    Ok(())
}

/// Numbers for each channel of x.
pub(crate) fn require_per_channel(
    op: &'static str,
    x: &Meta,
    v: &Meta,
    want: &[usize],
) -> Result<(), OpError> {
    require_same_dtype(op, x, v)?;
    if v.shape[..] != *want {
        let hint = "there must be one number per channel (axis 1)";
        return Err(OpError::Shapes { op, left: x.shape.clone(), right: v.shape.clone(), hint });
    }
    Ok(())
}

/// (batch, channels, length): the further axes as one.
pub(crate) fn sizes(shape: &Shape) -> [usize; 3] {
    [shape[0], shape[1], shape[2..].iter().product()]
}

/// All axes but that of the channels.
pub(crate) fn reduced(x: &Tensor) -> Vec<usize> {
    (0..x.rank()).filter(|&axis| axis != 1).collect()
}

/// One number per channel, in the shape (1, channels, 1, …) in which it meets x.
pub(crate) fn column(v: &Tensor, x: &Tensor) -> Tensor {
    v.reshape((0..x.rank()).map(|axis| if axis == 1 { x.size(1) } else { 1 }).collect::<Shape>())
}

/// u = (x − mean) / √(variance + eps), and the factor 1 / √(variance + eps), by primitives.
pub(crate) fn by_primitives(x: &Tensor, eps: Number) -> (Tensor, Tensor) {
    let axes = reduced(x);
    let centred = x - x.mean_keepdim(&axes[..]);
    let scale = ((&centred * &centred).mean_keepdim(&axes[..]) + eps.0).rsqrt();
    (centred * &scale, scale)
}

/// u in f64 for the reference kernels, and the factor of each channel.
pub(crate) struct Units {
    pub u: Vec<f64>,
    pub scale: Vec<f64>,
    length: usize,
}

impl Units {
    pub fn of(x: View<'_>, eps: Number) -> Self {
        let [batch, channels, length] = sizes(x.shape());
        let mut units = Self { u: widened(x), scale: vec![0.0; channels], length };
        for c in 0..channels {
            let at: Vec<usize> = (0..units.u.len()).filter(|&i| units.channel(i) == c).collect();
            let n = (batch * length) as f64;
            let mean = at.iter().map(|&i| units.u[i]).sum::<f64>() / n;
            let variance = at.iter().map(|&i| (units.u[i] - mean).powi(2)).sum::<f64>() / n;
            units.scale[c] = 1.0 / (variance + eps.0).sqrt();
            at.iter().for_each(|&i| units.u[i] = (units.u[i] - mean) * units.scale[c]);
        }
        units
    }

    /// The channel of an element, counted in row-major order.
    pub fn channel(&self, i: usize) -> usize {
        i / self.length % self.scale.len()
    }
}
