//! How parameters start.
//!
//! Each function draws a tensor; `layer.weight.set(init::orthogonal([4, 4], 1.0, &mut rng))` puts it in
//! place. The fans of a weight (out, in, …) are the numbers of connections of an output and of an input:
//! a size times the product of all further sizes.

use thalweg_core::{DType, Shape};
use thalweg_tensor::ops::Orthonormal;
use thalweg_tensor::{Rng, Tensor, apply};

/// Which connections set the scale in [`kaiming_uniform`] and [`kaiming_normal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fan {
    /// Those that lead into an output: activations keep their scale.
    #[default]
    In,
    /// Those that lead out of an input: gradients keep theirs.
    Out,
}

/// (fan in, fan out) of a weight (out, in, …). Panics for less than two axes.
#[track_caller]
pub fn fans(shape: &Shape) -> (usize, usize) {
    assert!(shape.rank() >= 2, "fans: a weight has at least 2 axes (out, in), not the shape {shape}");
    let window: usize = shape[2..].iter().product();
    (shape[1] * window, shape[0] * window)
}

/// The factor by which an activation shrinks the scale of normal numbers, as PyTorch counts it: 1 for
/// none and sigmoid, 5/3 for tanh, √2 for ReLU, ¾ for SELU.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub enum Gain {
    /// No activation, or sigmoid.
    #[default]
    Linear,
    /// tanh.
    Tanh,
    /// ReLU.
    Relu,
    /// ReLU with this slope on the left.
    LeakyRelu(f64),
    /// SELU.
    Selu,
}

impl Gain {
    /// The factor.
    pub fn value(self) -> f64 {
        match self {
            Gain::Linear => 1.0,
            Gain::Tanh => 5.0 / 3.0,
            Gain::Relu => std::f64::consts::SQRT_2,
            Gain::LeakyRelu(slope) => (2.0 / (1.0 + slope * slope)).sqrt(),
            Gain::Selu => 0.75,
        }
    }
}

/// Glorot and Bengio (2010), uniform: variance gain² · 2 / (fan in + fan out).
#[track_caller]
pub fn xavier_uniform(shape: impl Into<Shape>, gain: f64, rng: &mut Rng) -> Tensor {
    let shape = shape.into();
    let bound = 3f64.sqrt() * xavier_std(&shape, gain);
    rng.uniform(shape, -bound, bound)
}

/// Glorot and Bengio (2010), normal: variance gain² · 2 / (fan in + fan out).
#[track_caller]
pub fn xavier_normal(shape: impl Into<Shape>, gain: f64, rng: &mut Rng) -> Tensor {
    let shape = shape.into();
    let std = xavier_std(&shape, gain);
    rng.normal(shape, 0.0, std)
}

/// He et al. (2015), uniform: variance gain² / fan.
///
/// ```
/// use thalweg_nn::init::{Fan, Gain, kaiming_uniform};
/// use thalweg_tensor::Rng;
/// let w = kaiming_uniform([100, 50], Fan::In, Gain::Relu, &mut Rng::seed(0));
/// assert!(w.abs().amax(()).item::<f32>() <= (6.0f32 / 50.0).sqrt());
/// ```
#[track_caller]
pub fn kaiming_uniform(shape: impl Into<Shape>, fan: Fan, gain: Gain, rng: &mut Rng) -> Tensor {
    let shape = shape.into();
    let bound = 3f64.sqrt() * kaiming_std(&shape, fan, gain);
    rng.uniform(shape, -bound, bound)
}

/// He et al. (2015), normal: variance gain² / fan.
#[track_caller]
pub fn kaiming_normal(shape: impl Into<Shape>, fan: Fan, gain: Gain, rng: &mut Rng) -> Tensor {
    let shape = shape.into();
    let std = kaiming_std(&shape, fan, gain);
    rng.normal(shape, 0.0, std)
}

/// Saxe et al. (2013): orthonormal rows or columns, whichever are fewer, times `gain`. Axes after the
/// first count as one.
#[track_caller]
pub fn orthogonal(shape: impl Into<Shape>, gain: f64, rng: &mut Rng) -> Tensor {
    let shape = shape.into();
    assert!(shape.rank() >= 2, "orthogonal: needs at least 2 axes, not the shape {shape}");
    let (rows, cols) = (shape[0], shape[1..].iter().product::<usize>());
    let (tall, thin) = (rows.max(cols), rows.min(cols));
    // In double precision, so that the columns are orthonormal to the last bit of single precision.
    let normal = rng.normal([tall, thin], 0.0, 1.0).to_dtype(DType::F64);
    let q = apply(Orthonormal, &[&normal]).expect("at least as many rows as columns");
    // The decomposition makes the diagonal of R positive, so the draw is uniform over rotations.
    let q = if rows < cols { q.t() } else { q };
    (q * gain).to_dtype(DType::F32).reshape(shape)
}

/// Normal numbers, none farther than two standard deviations from 0.
#[track_caller]
pub fn truncated_normal(shape: impl Into<Shape>, std: f64, rng: &mut Rng) -> Tensor {
    rng.truncated_normal(shape, 0.0, std, -2.0 * std, 2.0 * std)
}

/// Uniform between ±1 / √fan: what layers start with unless told otherwise, as in PyTorch.
pub(crate) fn by_fan(shape: impl Into<Shape>, fan: usize, rng: &mut Rng) -> Tensor {
    let bound = if fan == 0 { 0.0 } else { 1.0 / (fan as f64).sqrt() };
    rng.uniform(shape, -bound, bound)
}

#[track_caller]
fn xavier_std(shape: &Shape, gain: f64) -> f64 {
    let (fan_in, fan_out) = fans(shape);
    gain * (2.0 / (fan_in + fan_out) as f64).sqrt()
}

#[track_caller]
fn kaiming_std(shape: &Shape, fan: Fan, gain: Gain) -> f64 {
    let (fan_in, fan_out) = fans(shape);
    let fan = match fan {
        Fan::In => fan_in,
        Fan::Out => fan_out,
    };
    gain.value() / (fan as f64).sqrt()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn std(t: &Tensor) -> f64 {
        f64::from(t.square().mean(()).sqrt().item::<f32>())
    }

    fn close(got: f64, want: f64) {
        assert!((got / want - 1.0).abs() < 0.02, "{got} instead of {want}");
    }

    #[test]
    fn scales_are_those_of_the_papers() {
        let shape = [200usize, 100, 3, 3];
        let rng = &mut Rng::seed(5);
        for t in [xavier_uniform(shape, 1.5, rng), xavier_normal(shape, 1.5, rng)] {
            close(std(&t), 1.5 * (2.0f64 / (900.0 + 1800.0)).sqrt());
        }
        for (fan, n) in [(Fan::In, 900.0f64), (Fan::Out, 1800.0)] {
            for t in
                [kaiming_uniform(shape, fan, Gain::Relu, rng), kaiming_normal(shape, fan, Gain::Relu, rng)]
            {
                close(std(&t), (2.0 / n).sqrt());
            }
        }
        let t = truncated_normal([100_000], 0.02, rng);
        // The standard deviation of a normal cut at two of its own is 0.8796 of it.
        close(std(&t), 0.02 * 0.8796);
        assert!(t.abs().amax(()).item::<f32>() <= 0.04);
    }

    #[test]
    fn orthogonal_rows_or_columns() {
        for shape in [[6usize, 3], [3, 6], [4, 4]] {
            let q = orthogonal(shape, 2.0, &mut Rng::seed(9));
            let gram = if shape[0] < shape[1] { q.matmul(&q.t()) } else { q.t().matmul(&q) };
            let error =
                (gram - Tensor::eye(3.min(shape[0]).max(shape[0].min(shape[1])), DType::F32) * 4.0).abs();
            assert!(error.amax(()).item::<f32>() < 1e-5, "{shape:?}");
        }
    }
}
