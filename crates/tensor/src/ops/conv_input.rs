//! `conv_input`: the gradient of a convolution with respect to its input, which is also the transposed
//! convolution: x[n, i, q] = Σ w[o, i, k] · y[n, o, p] over all p, k that meet at q.

use smallvec::SmallVec;
use thalweg_core::{DType, Shape, View, ViewMut};
use thalweg_kernels::conv;
use thalweg_kernels::gemm::OnReady;

use crate::apply::run;
use crate::args::PerAxis;
use crate::error::{OpError, fail, or_fail};
use crate::meta::{Meta, arity, require_float, require_same_dtype};
use crate::ops::conv::{batched, with_bias};
use crate::ops::convolution::{self, ConvAxis, ConvGeometry};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{Conv, ConvWeight, single};
use crate::tensor::Tensor;

/// y: (batch, out, *output), w: (out, in / groups, *kernel) → (batch, in, *input).
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct ConvInput {
    /// Stride, dilation, padding and groups of the convolution.
    pub geometry: ConvGeometry,
    /// The sizes of its input, of which several can lead to one output.
    pub input: SmallVec<[usize; 3]>,
}

const NAMES: [&str; 3] = ["conv_transpose1d", "conv_transpose2d", "conv_transpose3d"];

impl Primitive for ConvInput {
    const NAME: &'static str = "conv_input";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [y, w] = arity(Self::NAME, x)?;
        let name = self.geometry.name(NAMES);
        require_float(name, y)?;
        require_same_dtype(name, y, w)?;
        let n = self.geometry.axes.len();
        for shape in [&y.shape, &w.shape] {
            if shape.rank() != n + 2 || self.input.len() != n {
                let want = ["3", "4", "5"][n.clamp(1, 3) - 1];
                return Err(OpError::Rank { op: name, want, shape: shape.clone() });
            }
        }
        let x: Shape = [y.shape[0], w.shape[1].saturating_mul(self.geometry.groups)]
            .into_iter()
            .chain(self.input.iter().copied())
            .collect();
        if self.geometry.result(name, &x, &w.shape)? != y.shape {
            let hint = "axis 1 of the input (channels) must equal axis 0 of the weight";
            return Err(OpError::Shapes { op: name, left: y.shape.clone(), right: w.shape.clone(), hint });
        }
        Ok(y.with_shape(x))
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::input(1))
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let geometry = || self.geometry.clone();
        g.pair(
            || run(Conv { geometry: geometry() }, &[g.dy(), g.x(1)]),
            || {
                let op = ConvWeight { geometry: geometry(), kernel: g.x(1).shape()[2..].into() };
                run(op, &[g.dy(), g.x(0)])
            },
        )
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let c = self.geometry.sizes(y.shape(), x[1].shape(), x[0].shape());
        convolution::reference(&c, [x[0], x[1]], y, |[x, w, y]| [y, w, x]);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let c = self.geometry.sizes(y.shape(), x[1].shape(), x[0].shape());
        let (Some(dy), Some(w)) = (single::operand(x[0]), single::operand(x[1])) else { return false };
        single::result(y, |dx| conv::input_gradient(&c, &dy, &w, dx))
    }

    fn is_ready_in_pieces(&self) -> bool {
        true
    }

    fn fast_then(&self, x: &[View<'_>], y: &mut ViewMut<'_>, ready: &OnReady<'_>) -> bool {
        if y.dtype() != DType::F32 {
            return false;
        }
        let c = self.geometry.sizes(y.shape(), x[1].shape(), x[0].shape());
        let (Some(dy), Some(w)) = (single::operand(x[0]), single::operand(x[1])) else { return false };
        conv::input_gradient_then(&c, &dy, &w, y.dense(), Some(ready));
        true
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let c = self.geometry.sizes(&y.shape, &x[1].shape, &x[0].shape);
        Cost { flops: convolution::flops(&c), bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |(x, w, geometry): (Shape, Shape, ConvGeometry)| {
            let y = geometry.result(Self::NAME, &x, &w).expect("a sample that fits");
            Sample::new(ConvInput { geometry, input: x[2..].into() }, [Draw::any(y), Draw::any(w)])
        };
        convolution::sample_calls().into_iter().map(call).collect()
    }
}

/// The options of `conv_transpose1d`, `conv_transpose2d` and `conv_transpose3d`.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ConvTransposeOptions {
    /// Steps from one window to the next.
    pub stride: PerAxis,
    /// Zeros around the input of the convolution that this is the transpose of: cut off here.
    pub padding: PerAxis,
    /// Added to the size after the last window; less than the stride.
    pub output_padding: PerAxis,
    /// Steps from one tap to the next.
    pub dilation: PerAxis,
    /// Groups of channels that do not see each other.
    pub groups: usize,
}

impl Default for ConvTransposeOptions {
    fn default() -> Self {
        Self { stride: 1.into(), padding: 0.into(), output_padding: 0.into(), dilation: 1.into(), groups: 1 }
    }
}

impl Tensor {
    /// Transposed convolution along one axis. self: (batch, in, length) or (in, length), weight:
    /// (in, out / groups, kernel), bias: (out).
    #[track_caller]
    pub fn conv_transpose1d(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        options: &ConvTransposeOptions,
    ) -> Tensor {
        transpose(self, weight, bias, options, 1)
    }

    /// Transposed convolution along two axes. self: (batch, in, height, width) or without batch,
    /// weight: (in, out / groups, *kernel), bias: (out).
    ///
    /// ```
    /// use thalweg_core::DType;
    /// use thalweg_tensor::{ConvTransposeOptions, Tensor};
    /// let (x, w) = (Tensor::ones([1, 4, 5, 5], DType::F32), Tensor::ones([4, 2, 2, 2], DType::F32));
    /// let y = x.conv_transpose2d(&w, None, &ConvTransposeOptions { stride: 2.into(), ..Default::default() });
    /// assert_eq!(y.shape()[..], [1, 2, 10, 10]);
    /// ```
    #[track_caller]
    pub fn conv_transpose2d(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        options: &ConvTransposeOptions,
    ) -> Tensor {
        transpose(self, weight, bias, options, 2)
    }

    /// Transposed convolution along three axes. self: (batch, in, depth, height, width) or without
    /// batch, weight: (in, out / groups, *kernel), bias: (out).
    #[track_caller]
    pub fn conv_transpose3d(
        &self,
        weight: &Tensor,
        bias: Option<&Tensor>,
        options: &ConvTransposeOptions,
    ) -> Tensor {
        transpose(self, weight, bias, options, 3)
    }
}

#[track_caller]
fn transpose(
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
    options: &ConvTransposeOptions,
    n: usize,
) -> Tensor {
    let op = NAMES[n - 1];
    let want = ["3 in the weight", "4 in the weight", "5 in the weight"][n - 1];
    if w.rank() != n + 2 {
        fail(OpError::Rank { op, want, shape: w.shape().clone() });
    }
    batched(x, n, |x| {
        if x.rank() != n + 2 {
            let want = ["2 or 3", "3 or 4", "4 or 5"][n - 1];
            fail(OpError::Rank { op, want, shape: x.shape().clone() });
        }
        let (axes, input) = or_fail(options.axes(op, x.shape(), &w.shape()[2..]));
        let geometry = ConvGeometry { axes: axes.into(), groups: options.groups };
        with_bias(op, run(ConvInput { geometry, input }, &[x, w]), bias)
    })
}

type Sizes = SmallVec<[usize; 3]>;

impl ConvTransposeOptions {
    /// The axes of the convolution that this is the transpose of, and the sizes of its input.
    fn axes(&self, op: &'static str, x: &Shape, kernel: &[usize]) -> Result<(Vec<ConvAxis>, Sizes), OpError> {
        let n = kernel.len();
        let stride = self.stride.list(op, "stride", n, x)?;
        let padding = self.padding.list(op, "padding", n, x)?;
        let extra = self.output_padding.list(op, "output_padding", n, x)?;
        let dilation = self.dilation.list(op, "dilation", n, x)?;
        let (mut axes, mut input) = (Vec::new(), SmallVec::new());
        for i in 0..n {
            let error = |name, value: usize, need| {
                Err(OpError::Argument { op, name, value: value.to_string(), shape: x.clone(), need })
            };
            if stride[i] == 0 || dilation[i] == 0 || kernel[i] == 0 {
                return error("stride, dilation or kernel size", 0, "must be at least 1");
            }
            if extra[i] >= stride[i] {
                return error("output_padding", extra[i], "must be less than the stride");
            }
            let reach = dilation[i].saturating_mul(kernel[i] - 1).saturating_add(1);
            let full = x[2 + i]
                .saturating_sub(1)
                .saturating_mul(stride[i])
                .saturating_add(reach)
                .saturating_add(extra[i]);
            let Some(size) =
                full.checked_sub(padding[i].saturating_mul(2)).filter(|&s| s > 0 && x[2 + i] > 0)
            else {
                return error("padding", padding[i], "cuts off the whole result");
            };
            axes.push(ConvAxis { stride: stride[i], dilation: dilation[i], padding: [padding[i]; 2] });
            input.push(size);
        }
        Ok((axes, input))
    }
}
