//! Noise against overfitting.

use thalweg_derive::Module;
use thalweg_tensor::{Rng, Tensor};

use crate::module::{Layer, Mode, Noise};
use crate::summary::Frame;

/// While training, sets each element to 0 with probability `p` and scales the others up, so that sums
/// keep their mean (Srivastava et al., 2014). In use, does nothing.
///
/// ```
/// use thalweg_nn::{Dropout, Layer, Module};
/// use thalweg_tensor::{Rng, Tensor};
/// let layer = Dropout::new(0.5, &mut Rng::seed(0));
/// let x = Tensor::from([1.0f32; 8]);
/// assert!(layer.forward(&x).to_vec::<f32>().iter().all(|&y| y == 0.0 || y == 2.0));
/// layer.eval();
/// assert_eq!(layer.forward(&x).to_vec::<f32>(), [1.0; 8]);
/// ```
#[derive(Debug, Module)]
pub struct Dropout {
    p: f64,
    /// Whether an element stands for itself or for all of its channel.
    whole_channels: bool,
    mode: Mode,
    noise: Noise,
}

impl Dropout {
    /// Drops single elements. Panics unless 0 ≤ p < 1.
    #[track_caller]
    pub fn new(p: f64, rng: &mut Rng) -> Self {
        assert!((0.0..1.0).contains(&p), "dropout: p = {p} must lie in 0..1");
        Self { p, whole_channels: false, mode: Mode::default(), noise: Noise::new(rng) }
    }

    /// Drops whole channels (axis 1) of each image, whose neighbouring pixels know too much of each
    /// other.
    #[track_caller]
    pub fn channels(p: f64, rng: &mut Rng) -> Self {
        Self { whole_channels: true, ..Self::new(p, rng) }
    }

    /// Whether it drops anything at present.
    pub fn is_active(&self) -> bool {
        self.p > 0.0 && self.mode.is_training()
    }
}

impl Layer for Dropout {
    #[track_caller]
    fn forward(&self, x: &Tensor) -> Tensor {
        let frame = Frame::open();
        if !self.is_active() {
            return frame.close(self, x.clone());
        }
        let mut shape = x.shape().clone();
        if self.whole_channels {
            shape.dims_mut().iter_mut().skip(2).for_each(|d| *d = 1);
        }
        let kept = self.noise.with(|rng| rng.bernoulli(shape, 1.0 - self.p));
        frame.close(self, x * kept.to_dtype(x.dtype()) * (1.0 / (1.0 - self.p)))
    }
}

#[cfg(test)]
mod tests {
    use thalweg_core::DType;
    use thalweg_tensor::{Rng, Tensor};

    use super::Dropout;
    use crate::{Layer, Module};

    #[test]
    fn the_share_and_the_mean_are_as_asked() {
        let layer = Dropout::new(0.3, &mut Rng::seed(3));
        let y = layer.forward(&Tensor::ones([100_000], DType::F32));
        let zeros = y.eq(0.0).to_dtype(DType::F32).mean(()).item::<f32>();
        assert!((zeros - 0.3).abs() < 0.01, "{zeros}");
        assert!((y.mean(()).item::<f32>() - 1.0).abs() < 0.01);
        assert_ne!(y.to_vec::<f32>(), layer.forward(&Tensor::ones([100_000], DType::F32)).to_vec::<f32>());
    }

    #[test]
    fn a_channel_is_dropped_as_a_whole() {
        let layer = Dropout::channels(0.5, &mut Rng::seed(3));
        let y = layer.forward(&Tensor::ones([8, 16, 3, 3], DType::F32)).reshape([128, 9]);
        let sums = y.sum(1).to_vec::<f32>();
        assert!(sums.iter().all(|&s| s == 0.0 || s == 18.0), "{sums:?}");
        assert!(sums.contains(&0.0) && sums.contains(&18.0));
    }

    #[test]
    fn the_gradient_passes_where_the_value_did() {
        let layer = Dropout::new(0.5, &mut Rng::seed(4));
        let x = Tensor::ones([32], DType::F32).requires_grad();
        let y = layer.forward(&x);
        let g = y.sum(()).grad(&[&x]).remove(0);
        assert_eq!(g.to_vec::<f32>(), y.to_vec::<f32>());
    }

    #[test]
    fn modes_reach_through_the_tree() {
        let layers = vec![Dropout::new(0.5, &mut Rng::seed(1)), Dropout::new(0.5, &mut Rng::seed(2))];
        let x = Tensor::ones([16], DType::F32);
        layers.eval();
        assert!(layers.iter().all(|l| l.forward(&x).to_vec::<f32>() == [1.0; 16]));
        layers.train(true);
        assert!(layers.iter().all(|l| l.forward(&x).to_vec::<f32>() != [1.0; 16]));
    }
}
