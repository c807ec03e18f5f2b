//! `col2im`: columns added up where their windows lie in an image, the adjoint of `im2col`:
//! (batch, channels · taps, outputs) → (batch, channels, *size).

use smallvec::SmallVec;
use thalweg_core::{Shape, View, ViewMut};
use thalweg_kernels::conv;

use crate::apply::run;
use crate::args::PerAxis;
use crate::error::{OpError, fail, or_fail};
use crate::meta::{Meta, arity, require_float};
use crate::ops::convolution::{ConvGeometry, ConvOptions, sample_calls};
use crate::ops::im2col::{columns, for_each_pair, windows};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::rowwise::{narrow_into, widened};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{Im2col, single};
use crate::tensor::Tensor;

/// Columns added up to images.
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Col2im {
    /// Stride, dilation and padding; one group.
    pub geometry: ConvGeometry,
    /// The sizes of a window.
    pub kernel: SmallVec<[usize; 3]>,
    /// Channels of the image.
    pub channels: usize,
    /// Spatial sizes of the image.
    pub size: SmallVec<[usize; 3]>,
}

impl Col2im {
    fn image(&self, batch: usize) -> Shape {
        [batch, self.channels].into_iter().chain(self.size.iter().copied()).collect()
    }

    fn windows(&self, batch: usize) -> Result<conv::Conv, OpError> {
        windows(Self::NAME, &self.geometry, &self.kernel, &self.image(batch))
    }
}

impl Primitive for Col2im {
    const NAME: &'static str = "fold_col2im";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x] = arity(Self::NAME, x)?;
        require_float(Self::NAME, x)?;
        if x.shape.rank() != 3 {
            return Err(OpError::Rank {
                op: Self::NAME,
                want: "3 (batch, channels · taps, windows)",
                shape: x.shape.clone(),
            });
        }
        let want = columns(&self.windows(x.shape[0])?);
        if want != x.shape {
            let hint = "the columns must be (batch, channels · taps, windows) of the image";
            return Err(OpError::Shapes { op: Self::NAME, left: x.shape.clone(), right: want, hint });
        }
        Ok(x.with_shape(self.image(x.shape[0])))
    }

    fn keep(&self) -> Keep {
        Keep::NOTHING
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        Grad::one(run(Im2col { geometry: self.geometry.clone(), kernel: self.kernel.clone() }, &[g.dy()]))
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let c = self.windows(y.shape()[0])?;
        let (x, mut sums) = (widened(x[0]), vec![0.0; y.shape().numel()]);
        for_each_pair(&c, |at, column| sums[at] += x[column]);
        narrow_into(&sums, y);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let (Ok(c), Some(x)) = (self.windows(y.shape()[0]), single::operand(x[0])) else { return false };
        single::result(y, |y| conv::col2im(&c, &x, y))
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        Cost { flops: x[0].numel() as u64, bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |(x, w, g): (Shape, Shape, ConvGeometry)| {
            let (geometry, kernel) = (ConvGeometry { groups: 1, ..g }, w[2..].into());
            let op = Col2im { geometry, kernel, channels: x[1], size: x[2..].into() };
            let from = columns(&op.windows(x[0]).expect("a sample that fits"));
            Sample::new(op, [Draw::any(from)])
        };
        sample_calls().into_iter().map(call).collect()
    }
}

impl Tensor {
    /// Columns added up where their windows lie, as `torch.nn.functional.fold`: (batch,
    /// channels · taps, windows) → (batch, channels, height, width). `options.groups` must be 1.
    #[track_caller]
    pub fn fold_col2im(
        &self,
        output_size: impl Into<PerAxis>,
        kernel_size: impl Into<PerAxis>,
        options: &ConvOptions,
    ) -> Tensor {
        let op = Col2im::NAME;
        let size = or_fail(output_size.into().list(op, "output_size", 2, self.shape()));
        let kernel = or_fail(kernel_size.into().list(op, "kernel_size", 2, self.shape()));
        let geometry = or_fail(options.geometry(op, self.shape(), &kernel));
        let taps = kernel.iter().fold(1usize, |n, &k| n.saturating_mul(k));
        let x = if self.rank() == 2 { self.unsqueeze(0) } else { self.clone() };
        if x.rank() != 3 || taps == 0 || !x.size(1).is_multiple_of(taps) {
            let hint = "axis 1 of the columns must be channels times the elements of a window";
            fail(OpError::Shapes {
                op,
                left: self.shape().clone(),
                right: kernel.iter().copied().collect(),
                hint,
            });
        }
        let channels = x.size(1) / taps;
        let y = run(Col2im { geometry, kernel, channels, size }, &[&x]);
        if self.rank() == 2 { y.squeeze(0) } else { y }
    }
}
