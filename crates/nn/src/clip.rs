//! Clipping gradients.

use thalweg_tensor::Tensor;

/// How gradients are kept in bounds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Clip {
    /// All together are scaled down when their common p-norm passes `max`. An infinite p is the largest
    /// magnitude.
    Norm {
        /// The largest norm.
        max: f64,
        /// Which norm.
        p: f64,
    },
    /// Each element is kept between ± this number.
    Value(f64),
}

impl Clip {
    /// The gradients in bounds.
    pub fn apply(&self, gradients: &[Tensor]) -> Vec<Tensor> {
        match *self {
            Clip::Norm { max, p } => clip_norm(gradients, max, p).0,
            Clip::Value(max) => gradients.iter().map(|g| g.clamp(-max, max)).collect(),
        }
    }
}

/// Scales tensors down together when their common p-norm passes `max`; returns them with the norm that
/// they had.
///
/// ```
/// use thalweg_nn::clip_norm;
/// use thalweg_tensor::Tensor;
/// let (clipped, norm) = clip_norm(&[Tensor::from([3.0f32]), Tensor::from([4.0f32])], 1.0, 2.0);
/// assert_eq!(norm.item::<f32>(), 5.0);
/// assert!((clipped[1].item::<f32>() - 0.8).abs() < 1e-6);
/// ```
pub fn clip_norm(gradients: &[Tensor], max: f64, p: f64) -> (Vec<Tensor>, Tensor) {
    if gradients.is_empty() {
        return (Vec::new(), Tensor::scalar(0.0));
    }
    let norms: Vec<Tensor> = gradients.iter().map(|g| g.vector_norm(p, ())).collect();
    let norm = Tensor::stack(&norms, 0).vector_norm(p, ());
    // The small summand keeps the factor finite and is PyTorch's.
    let factor = (max / (&norm + 1e-6)).clamp_max(1.0);
    (gradients.iter().map(|g| g * factor.to_dtype(g.dtype())).collect(), norm)
}
