//! `conv`: convolution (in fact cross-correlation, as everywhere in this field) over one to three spatial
//! axes: y[n, o, p] = Σ w[o, i, k] · x[n, i, p · stride + k · dilation − padding].

use thalweg_core::{DType, Shape, View, ViewMut};
use thalweg_kernels::conv;
use thalweg_kernels::gemm::OnReady;

use crate::apply::run;
use crate::error::{OpError, fail, or_fail};
use crate::meta::{Meta, arity, require_float, require_same_dtype};
use crate::ops::convolution::{self, ConvGeometry, ConvOptions};
use crate::ops::primitive::{Cost, Grad, Keep, Primitive, Vjp};
use crate::ops::sample::{Draw, Sample};
use crate::ops::{ConvInput, ConvWeight, single};
use crate::tensor::Tensor;

/// x: (batch, in, *input), w: (out, in / groups, *kernel) → (batch, out, *output).
#[derive(Debug, Clone, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub struct Conv {
    /// Stride, dilation, padding and groups.
    pub geometry: ConvGeometry,
}

const NAMES: [&str; 3] = ["conv1d", "conv2d", "conv3d"];

impl Primitive for Conv {
    const NAME: &'static str = "conv";

    fn infer(&self, x: &[&Meta]) -> Result<Meta, OpError> {
        let [x, w] = arity(Self::NAME, x)?;
        let name = self.geometry.name(NAMES);
        require_float(name, x)?;
        require_same_dtype(name, x, w)?;
        Ok(x.with_shape(self.geometry.result(name, &x.shape, &w.shape)?))
    }

    fn keep(&self) -> Keep {
        Keep::input(0).and(Keep::input(1))
    }

    fn grad(&self, g: &Vjp<'_>) -> Grad {
        let geometry = || self.geometry.clone();
        g.pair(
            || {
                let op = ConvInput { geometry: geometry(), input: g.x(0).shape()[2..].into() };
                run(op, &[g.dy(), g.x(1)])
            },
            || {
                let op = ConvWeight { geometry: geometry(), kernel: g.x(1).shape()[2..].into() };
                run(op, &[g.x(0), g.dy()])
            },
        )
    }

    fn eval(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> Result<(), OpError> {
        let c = self.geometry.sizes(x[0].shape(), x[1].shape(), y.shape());
        convolution::reference(&c, [x[0], x[1]], y, |[x, w, y]| [x, w, y]);
        Ok(())
    }

    fn fast(&self, x: &[View<'_>], y: &mut ViewMut<'_>) -> bool {
        let c = self.geometry.sizes(x[0].shape(), x[1].shape(), y.shape());
        let (Some(x), Some(w)) = (single::operand(x[0]), single::operand(x[1])) else { return false };
        single::result(y, |y| conv::forward(&c, &x, &w, y))
    }

    fn is_ready_in_pieces(&self) -> bool {
        true
    }

    fn fast_then(&self, x: &[View<'_>], y: &mut ViewMut<'_>, ready: &OnReady<'_>) -> bool {
        if y.dtype() != DType::F32 {
            return false;
        }
        let c = self.geometry.sizes(x[0].shape(), x[1].shape(), y.shape());
        let (Some(x), Some(w)) = (single::operand(x[0]), single::operand(x[1])) else { return false };
        conv::forward_then(&c, &x, &w, y.dense(), Some(ready));
        true
    }

    fn passes_planes(&self, x: &[&Meta], y: &Meta) -> bool {
        let c = self.geometry.sizes(&x[0].shape, &x[1].shape, &y.shape);
        y.dtype == DType::F32 && conv::passes_planes(&c)
    }

    fn fast_planes(&self, x: &[View<'_>], y: &Meta, ready: &OnReady<'_>) -> bool {
        if y.dtype != DType::F32 {
            return false;
        }
        let c = self.geometry.sizes(x[0].shape(), x[1].shape(), &y.shape);
        let (Some(x), Some(w)) = (single::operand(x[0]), single::operand(x[1])) else { return false };
        conv::forward_planes(&c, &x, &w, ready)
    }

    fn cost(&self, x: &[&Meta], y: &Meta) -> Cost {
        let c = self.geometry.sizes(&x[0].shape, &x[1].shape, &y.shape);
        Cost { flops: convolution::flops(&c), bytes: Cost::traffic(x, y) }
    }

    fn samples() -> Vec<Sample> {
        let call = |(x, w, geometry): (Shape, Shape, ConvGeometry)| {
            Sample::new(Conv { geometry }, [Draw::any(x), Draw::any(w)])
        };
        convolution::sample_calls().into_iter().map(call).collect()
    }
}

impl Tensor {
    /// Convolution along one axis. self: (batch, in, length) or (in, length), weight:
    /// (out, in / groups, kernel), bias: (out).
    #[track_caller]
    pub fn conv1d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &ConvOptions) -> Tensor {
        convolve(self, weight, bias, options, 1)
    }

    /// Convolution along two axes. self: (batch, in, height, width) or (in, height, width), weight:
    /// (out, in / groups, *kernel), bias: (out).
    ///
    /// ```
    /// use thalweg_core::DType;
    /// use thalweg_tensor::{ConvOptions, Padding, Tensor};
    /// let (x, w) = (Tensor::ones([1, 3, 8, 8], DType::F32), Tensor::ones([4, 3, 3, 3], DType::F32));
    /// let y = x.conv2d(&w, None, &ConvOptions { padding: Padding::Same, ..Default::default() });
    /// assert_eq!(y.shape()[..], [1, 4, 8, 8]);
    /// assert_eq!(y.select(0, 0).select(0, 0).select(0, 4).select(0, 4).item::<f32>(), 27.0);
    /// ```
    #[track_caller]
    pub fn conv2d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &ConvOptions) -> Tensor {
        convolve(self, weight, bias, options, 2)
    }

    /// Convolution along three axes. self: (batch, in, depth, height, width) or without batch, weight:
    /// (out, in / groups, *kernel), bias: (out).
    #[track_caller]
    pub fn conv3d(&self, weight: &Tensor, bias: Option<&Tensor>, options: &ConvOptions) -> Tensor {
        convolve(self, weight, bias, options, 3)
    }
}

#[track_caller]
fn convolve(x: &Tensor, w: &Tensor, bias: Option<&Tensor>, options: &ConvOptions, n: usize) -> Tensor {
    let op = NAMES[n - 1];
    if w.rank() != n + 2 {
        let want = ["3 in the weight", "4 in the weight", "5 in the weight"][n - 1];
        fail(OpError::Rank { op, want, shape: w.shape().clone() });
    }
    let geometry = or_fail(options.geometry(op, x.shape(), &w.shape()[2..]));
    batched(x, n, |x| with_bias(op, run(Conv { geometry }, &[x, w]), bias))
}

/// Runs `f` on an operand of one image as on a batch of one.
#[track_caller]
pub(crate) fn batched(x: &Tensor, n_spatial: usize, f: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
    if x.rank() == n_spatial + 1 { f(&x.unsqueeze(0)).squeeze(0) } else { f(x) }
}

/// y + bias, one number per channel (axis 1).
#[track_caller]
pub(crate) fn with_bias(op: &'static str, y: Tensor, bias: Option<&Tensor>) -> Tensor {
    let Some(bias) = bias else { return y };
    if bias.rank() != 1 || bias.numel() != y.size(1) {
        let hint = "the bias has one number per output channel";
        fail(OpError::Shapes { op, left: y.shape().clone(), right: bias.shape().clone(), hint });
    }
    let mut shape: Shape = std::iter::repeat_n(1, y.rank()).collect();
    shape.dims_mut()[1] = bias.numel();
    let bias = bias.reshape(shape);
    y + bias
}

#[cfg(test)]
mod tests {
    use thalweg_core::DType;

    use super::ConvOptions;
    use crate::{ConvTransposeOptions, Tensor};

    #[test]
    fn one_image_is_a_batch_of_one() {
        let x = Tensor::linspace(-1.0, 1.0, 18).reshape([2, 3, 3]);
        let w = Tensor::linspace(0.0, 1.0, 16).reshape([2, 2, 2, 2]);
        let options = ConvOptions::default();
        let (one, batch) = (x.conv2d(&w, None, &options), x.unsqueeze(0).conv2d(&w, None, &options));
        assert_eq!(one.shape()[..], [2, 2, 2]);
        assert_eq!(one.to_vec::<f32>(), batch.to_vec::<f32>());
        let options = ConvTransposeOptions::default();
        assert_eq!(x.conv_transpose2d(&w, None, &options).shape()[..], [2, 4, 4]);
    }

    #[test]
    fn calls_that_do_not_fit_say_what_to_do() {
        let refused = |x: &[usize], w: &[usize], options: ConvOptions| {
            let (x, w) = (Tensor::zeros(x, DType::F32), Tensor::zeros(w, DType::F32));
            let call = std::panic::AssertUnwindSafe(|| x.conv2d(&w, None, &options));
            let panic = std::panic::catch_unwind(call).expect_err("must be refused");
            panic.downcast_ref::<String>().expect("a message").clone()
        };
        let plain = ConvOptions::default;
        let message = refused(&[1, 3, 5, 5], &[2, 4, 3, 3], plain());
        assert!(message.starts_with("conv2d: shapes [1, 3, 5, 5] and [2, 4, 3, 3] do not fit"), "{message}");
        let message = refused(&[1, 1, 2, 2], &[1, 1, 3, 3], plain());
        assert!(message.contains("larger than the padded input"), "{message}");
        let message = refused(&[1, 1, 5, 5], &[1, 1, 3, 3], ConvOptions { stride: 0.into(), ..plain() });
        assert!(message.starts_with("conv2d: stride = 0"), "{message}");
        let options = ConvOptions { stride: 2.into(), padding: crate::Padding::Same, ..plain() };
        assert!(refused(&[1, 1, 5, 5], &[1, 1, 3, 3], options).contains("stride 1"));
    }
}
