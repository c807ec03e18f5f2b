//! `im2col`: the windows of an image as columns: (batch, channels, *input) →
//! (batch, channels · taps, outputs).

use smallvec::SmallVec;
use thalweg_core::{Shape, View, ViewMut};
use thalweg_kernels::conv;

use crate::apply::run;
use crate::args::PerAxis;
use crate::error::{OpError, or_fail};
use crate::meta::{Meta, arity, require_float};
use crate::ops::conv::batched;
use crate::ops::convolution::{ConvGeometry, ConvOptions, sample_calls};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::rowwise::{narrow_into, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{Col2im, single};
use crate::tensor::Tensor;

/// Windows as columns.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Im2col {
    /// Stride, dilation and padding; one group.
    pub geometry: ConvGeometry,
    /// The sizes of a window.
    pub kernel: SmallVec<[usize; 3]>,
}

/// The sizes of a depthwise convolution with these windows over an image of shape `x`.
pub(crate) fn windows(
    op: &'static str,
    geometry: &ConvGeometry,
    kernel: &[usize],
    x: &Shape,
) -> Result<conv::Conv, OpError> {
    if x.rank() != geometry.axes.len() + 2 {
        let want = ["3", "4", "5"][geometry.axes.len().clamp(1, 3) - 1];
        return Err(OpError::Rank { op, want, shape: x.clone() });
    }
    let w: Shape = [1, x[1]].into_iter().chain(kernel.iter().copied()).collect();
    let y = geometry.result(op, x, &w)?;
    Ok(geometry.sizes(x, &w, &y))
}

/// Calls `f(image position, column position)` for every element of a window that is in no padding.
pub(crate) fn for_each_pair(c: &conv::Conv, mut f: impl FnMut(usize, usize)) {
    let product = |f: fn(&conv::Axis) -> usize| c.axes.iter().map(f).product::<usize>();
    let (n_in, n_taps, n_out) = (product(|a| a.input), product(|a| a.kernel), product(|a| a.output));
    for plane in 0..c.batch * c.in_channels {
        for tap in 0..n_taps {
            for out in 0..n_out {
                if let Some(at) = conv::naive::meet(c, out, tap) {
                    f(plane * n_in + at, (plane * n_taps + tap) * n_out + out);
                }
            }
        }
    }
}

/// The shape of the columns.
pub(crate) fn columns(c: &conv::Conv) -> Shape {
    let product = |f: fn(&conv::Axis) -> usize| c.axes.iter().map(f).product::<usize>();
    [c.batch, c.in_channels * product(|a| a.kernel), product(|a| a.output)].into()
}

impl Primitive for Im2col {
    const NAME: &'static str = "unfold_im2col";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        require_float(Self::NAME, x)?;
        Ok(x.with_shape(columns(&windows(Self::NAME, &self.geometry, &self.kernel, &x.shape)?)))
    }

    fn keep(&self) -> Keep {
        Keep::METAS
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let back = Col2im {
            geometry: self.geometry.clone(),
            kernel: self.kernel.clone(),
            channels: g.meta(0).shape[1],
            size: g.meta(0).shape[2..].into(),
        };
        Grad::one(run(back, &[g.dy()]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let c = windows(Self::NAME, &self.geometry, &self.kernel, x[0].shape())?;
        let (x, mut columns) = (widened(x[0]), vec![0.0; y.shape().numel()]);
        for_each_pair(&c, |at, column| columns[column] = x[at]);
        narrow_into(&columns, y);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let c = windows(Self::NAME, &self.geometry, &self.kernel, x[0].shape());
        let (Ok(c), Some(x)) = (c, single::operand(x[0])) else { return false };
        single::result(y, |y| conv::im2col(&c, &x, y))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost::copy(x, y)
    }

    fn samples() -> Vec<Sample> {
        let call = |(x, w, g): (Shape, Shape, ConvGeometry)| {
            let op = Im2col { geometry: ConvGeometry { groups: 1, ..g }, kernel: w[2..].into() };
            Sample::new(op, [Draw::any(x)])
        };
        sample_calls().into_iter().map(call).collect()
    }
}

impl Tensor {
    /// The windows of an image as columns, as `torch.nn.functional.unfold`: (batch, channels, height,
    /// width) → (batch, channels · taps, outputs). `options.groups` must be 1.
    #[track_caller]
    pub fn unfold_im2col(&self, kernel_size: impl Into<PerAxis>, options: &ConvOptions) -> Tensor {
        let kernel = or_fail(kernel_size.into().list(Im2col::NAME, "kernel_size", 2, self.shape()));
        let geometry = or_fail(options.geometry(Im2col::NAME, self.shape(), &kernel));
        batched(self, 2, |x| run(Im2col { geometry, kernel }, &[x]))
    }
}
