//! Positions as rotations (Su et al., 2021).

use thalweg_core::DType;
use thalweg_derive::Module;
use thalweg_tensor::Tensor;

/// Turns pairs of elements of queries and keys by angles that grow with the position, so that products
/// depend on distances. Element i of the first half of the width pairs with element i of the second.
///
/// ```
/// use thalweg_nn::Rotary;
/// use thalweg_tensor::Tensor;
/// let rotary = Rotary::new(2, 8);
/// let x = Tensor::from([[1.0f32, 0.0], [1.0, 0.0]]); // (time, width)
/// let y = rotary.forward_from(&x, 0).to_vec::<f32>();
/// assert_eq!(y[..2], [1.0, 0.0]); // position 0 stays
/// assert!((y[2] - 1f32.cos()).abs() < 1e-6 && (y[3] - 1f32.sin()).abs() < 1e-6);
/// ```
#[derive(Debug, Clone, Module)]
pub struct Rotary {
    /// (longest, width / 2): a function of the sizes, so no file holds them.
    #[module(skip)]
    cos: Tensor,
    #[module(skip)]
    sin: Tensor,
}

impl Rotary {
    /// For heads of an even width and sequences of at most `longest` steps, with the usual base 10,000.
    #[track_caller]
    pub fn new(width: usize, longest: usize) -> Self {
        Self::with_base(width, longest, 10_000.0)
    }

    /// The slowest pair turns by 1 / `base`, almost, per step.
    #[track_caller]
    pub fn with_base(width: usize, longest: usize, base: f64) -> Self {
        assert!(width.is_multiple_of(2), "rotary: the width {width} of a head is odd");
        let half = width / 2;
        let angle = |i: usize| (i / half) as f64 * base.powf(-2.0 * (i % half) as f64 / width as f64);
        let table = |f: fn(f64) -> f64| {
            let values: Vec<f64> = (0..longest * half).map(|i| f(angle(i))).collect();
            Tensor::from_vec(values, [longest, half]).to_dtype(DType::F32)
        };
        Self { cos: table(f64::cos), sin: table(f64::sin) }
    }

    /// Turns (…, time, width), whose first step stands at position `start`.
    #[track_caller]
    pub fn forward_from(&self, x: &Tensor, start: usize) -> Tensor {
        let (time, longest) = (x.size(-2), self.cos.size(0));
        assert!(
            start + time <= longest,
            "rotary: {time} steps from {start} on pass the longest sequence, {longest}"
        );
        let at = |table: &Tensor| table.narrow(0, start, time).to_dtype(x.dtype());
        x.rotary(&at(&self.cos), &at(&self.sin))
    }
}
