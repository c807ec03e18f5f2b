//! Random tensors. An [`Rng`] hands out keys; everything drawn is a function of its key.

use thalweg_core::{DType, Shape};

use crate::apply::run;
use crate::ops::{NextKey, Random, RandomGamma};
use crate::param::Param;
use crate::scalar::Scalar;
use crate::tensor::Tensor;
use crate::trace;

/// A source of random tensors.
///
/// The numbers depend only on the seed and on the order of the calls: not on the machine, not on
/// the number of threads.
///
/// ```
/// use thalweg_tensor::Rng;
/// let (mut a, mut b) = (Rng::seed(7), Rng::seed(7));
/// assert_eq!(a.normal([3], 0.0, 1.0).to_vec::<f32>(), b.normal([3], 0.0, 1.0).to_vec::<f32>());
/// ```
///
/// Its state is a [`Param`], so that a compiled function that draws goes on where it stopped.
pub struct Rng {
    /// Two words of key, two of the number of keys drawn.
    state: Param,
}

impl Rng {
    /// The source of this seed.
    pub fn seed(seed: u64) -> Self {
        Self::from_words([seed as u32, (seed >> 32) as u32, 0, 0])
    }

    /// A source whose numbers have nothing to do with this one's, nor with those of other splits.
    /// Not inside `jit`: a source outlives the function that it is used in.
    #[track_caller]
    pub fn split(&mut self) -> Rng {
        let [a, b] = self.key().to_array::<[u32; 2]>();
        Self::from_words([a, b, 0, 0])
    }

    /// The key of the next draw, as a tensor.
    pub fn key(&mut self) -> Tensor {
        let next = run(NextKey, &[&self.state.get()]);
        self.state.set(next.narrow(0, 0, 4));
        next.narrow(0, 4, 2)
    }

    /// How far this source has been used: with the seed, all there is to save.
    #[track_caller]
    pub fn position(&self) -> u64 {
        let [_, _, low, high] = self.words();
        u64::from(low) | u64::from(high) << 32
    }

    /// Continues at a saved position.
    #[track_caller]
    pub fn set_position(&mut self, position: u64) {
        let [a, b, ..] = self.words();
        self.state.set(Tensor::from([a, b, position as u32, (position >> 32) as u32]));
    }

    /// The state, for whoever saves it with other parameters.
    pub fn state(&self) -> &Param {
        &self.state
    }

    fn from_words(words: [u32; 4]) -> Self {
        Self { state: Param::state("rng", Tensor::from(words)) }
    }

    #[track_caller]
    fn words(&self) -> [u32; 4] {
        self.state.get().to_array()
    }

    /// Uniform floats in `lo..hi`.
    #[track_caller]
    pub fn uniform(&mut self, shape: impl Into<Shape>, lo: f64, hi: f64) -> Tensor {
        run(Random { shape: shape.into(), dtype: DType::F32 }, &[&self.key()]) * (hi - lo) + lo
    }

    /// Whole numbers in `lo..hi`, as i64.
    #[track_caller]
    pub fn randint(&mut self, shape: impl Into<Shape>, lo: i64, hi: i64) -> Tensor {
        assert!(lo < hi, "randint: the range {lo}..{hi} is empty");
        // 63 random bits against a range of at most 2⁶³: the bias of the remainder is range / 2⁶³.
        run(Random { shape: shape.into(), dtype: DType::I64 }, &[&self.key()]).remainder(hi.wrapping_sub(lo))
            + lo
    }

    /// Normal floats.
    #[track_caller]
    pub fn normal(&mut self, shape: impl Into<Shape>, mean: f64, std: f64) -> Tensor {
        let shape = shape.into();
        let radius = (self.positive(&shape).log() * -2.0).sqrt();
        let angle = self.uniform(&shape, 0.0, std::f64::consts::TAU);
        radius * angle.cos() * std + mean
    }

    /// Normal floats, drawn again wherever they fall outside `lo..hi` (in units of the result).
    #[track_caller]
    pub fn truncated_normal(
        &mut self,
        shape: impl Into<Shape>,
        mean: f64,
        std: f64,
        lo: f64,
        hi: f64,
    ) -> Tensor {
        assert!(lo < hi && std > 0.0, "truncated_normal: needs lo < hi and std > 0, got {lo}, {hi}, {std}");
        // The inverse of the distribution function, restricted to the interval.
        let cdf =
            |v: f64| 0.5 * thalweg_kernels::math::special::erfc(-(v - mean) / std / std::f64::consts::SQRT_2);
        let (a, b) = (2.0 * cdf(lo) - 1.0, 2.0 * cdf(hi) - 1.0);
        let p = run(Random { shape: shape.into(), dtype: DType::F64 }, &[&self.key()]) * (b - a) + a;
        (p.erfinv() * (std * std::f64::consts::SQRT_2) + mean).clamp(lo, hi).to_dtype(DType::F32)
    }

    /// `true` with probability `p`.
    #[track_caller]
    pub fn bernoulli(&mut self, shape: impl Into<Shape>, p: f64) -> Tensor {
        assert!((0.0..=1.0).contains(&p), "bernoulli: {p} is no probability");
        self.uniform(shape, 0.0, 1.0).lt(p)
    }

    /// Exponential floats with mean `1 / rate`.
    #[track_caller]
    pub fn exponential(&mut self, shape: impl Into<Shape>, rate: f64) -> Tensor {
        assert!(rate > 0.0, "exponential: the rate {rate} is not positive");
        self.positive(&shape.into()).log() * (-1.0 / rate)
    }

    /// Standard Gumbel floats.
    #[track_caller]
    pub fn gumbel(&mut self, shape: impl Into<Shape>) -> Tensor {
        -(-self.positive(&shape.into()).log()).log()
    }

    /// Laplace floats.
    #[track_caller]
    pub fn laplace(&mut self, shape: impl Into<Shape>, mean: f64, scale: f64) -> Tensor {
        let shape = shape.into();
        let side = self.bernoulli(&shape, 0.5).to_dtype(DType::F32) * 2.0 - 1.0;
        self.exponential(&shape, 1.0) * side * scale + mean
    }

    /// Gamma floats with unit scale, one per shape parameter in `alpha`.
    #[track_caller]
    pub fn gamma(&mut self, alpha: &Tensor) -> Tensor {
        run(RandomGamma, &[&self.key(), &alpha.as_float().stop_gradient()])
    }

    /// Beta floats, one per pair of parameters.
    #[track_caller]
    pub fn beta(&mut self, a: &Tensor, b: &Tensor) -> Tensor {
        let (x, y) = (self.gamma(a), self.gamma(b));
        &x / (&x + &y)
    }

    /// Points of the simplex along the last axis of `alpha`.
    #[track_caller]
    pub fn dirichlet(&mut self, alpha: &Tensor) -> Tensor {
        let x = self.gamma(alpha);
        &x / x.sum_keepdim(-1)
    }

    /// Class indices drawn with the probabilities softmax(logits) of the last axis.
    #[track_caller]
    pub fn categorical(&mut self, logits: &Tensor) -> Tensor {
        // The argmax of logits plus Gumbel noise has exactly this distribution.
        (logits.as_float().stop_gradient() + self.gumbel(logits.shape())).argmax(-1)
    }

    /// The numbers 0..n in random order.
    #[track_caller]
    pub fn permutation(&mut self, n: usize) -> Tensor {
        run(Random { shape: n.into(), dtype: DType::I64 }, &[&self.key()]).argsort(0, false)
    }

    /// Uniform in `0..1` without 0, so that its logarithm is finite.
    #[track_caller]
    fn positive(&mut self, shape: &Shape) -> Tensor {
        Scalar::Float(1.0).spread(DType::F32, shape) - self.uniform(shape, 0.0, 1.0)
    }
}

/// A copy goes its own way from the same position.
impl Clone for Rng {
    fn clone(&self) -> Self {
        Self::from_words(self.words())
    }
}

impl PartialEq for Rng {
    fn eq(&self, other: &Self) -> bool {
        self.words() == other.words()
    }
}

impl Eq for Rng {}

impl std::fmt::Debug for Rng {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match trace::is_recording() {
            true => f.write_str("Rng(traced)"),
            false => write!(f, "Rng({:?})", self.words()),
        }
    }
}
