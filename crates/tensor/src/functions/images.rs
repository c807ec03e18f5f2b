//! Functions of images that move or mix pixels: resizing and shuffling.

use thalweg_core::Shape;

use crate::args::PerAxis;
use crate::error::{OpError, fail, or_fail};
use crate::tensor::Tensor;

/// How `interpolate` finds values between pixels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Interpolation {
    /// The pixel at ⌊position⌋.
    Nearest,
    /// A straight line between two pixels of each axis: linear, bilinear, trilinear.
    Linear {
        /// Whether the outermost pixels of both images coincide in their centres, not in their edges.
        align_corners: bool,
    },
    /// A cubic through four pixels of each axis (Keys, a = −0.75): bicubic.
    Cubic {
        /// As for [`Interpolation::Linear`].
        align_corners: bool,
    },
    /// The mean of the pixels that an output covers.
    Area,
}

/// For each output position the pixels that it is made of: (index, weight) lists, one per tap.
type Taps = Vec<(Vec<i64>, Vec<f64>)>;

impl Interpolation {
    /// The taps along one axis, from `size` pixels to `output`.
    fn taps(self, size: usize, output: usize) -> Taps {
        let ratio = size as f64 / output as f64;
        let source = |align_corners: bool, o: usize| match (align_corners, output) {
            (true, 1) => 0.0,
            (true, _) => o as f64 * (size - 1) as f64 / (output - 1) as f64,
            (false, _) => (o as f64 + 0.5) * ratio - 0.5,
        };
        let last = size as i64 - 1;
        match self {
            Interpolation::Nearest => {
                // Whole numbers: o · size / output is exact where a rounded ratio is not.
                let index = (0..output).map(|o| ((o * size / output) as i64).min(last)).collect();
                vec![(index, vec![1.0; output])]
            }
            Interpolation::Linear { align_corners } => {
                let at: Vec<f64> = (0..output).map(|o| source(align_corners, o).max(0.0)).collect();
                let low = at.iter().map(|&p| (p as i64).min(last)).collect();
                let high = at.iter().map(|&p| (p as i64 + 1).min(last)).collect();
                let share: Vec<f64> = at.iter().map(|&p| p.fract()).collect();
                vec![(low, share.iter().map(|s| 1.0 - s).collect()), (high, share)]
            }
            Interpolation::Cubic { align_corners } => {
                let at: Vec<f64> = (0..output).map(|o| source(align_corners, o)).collect();
                let tap = |k: i64| {
                    let index = at.iter().map(|&p| (p.floor() as i64 + k).clamp(0, last)).collect();
                    (index, at.iter().map(|&p| keys(p - p.floor() - k as f64)).collect())
                };
                (-1..3).map(tap).collect()
            }
            Interpolation::Area => unreachable!("areas are pooled"),
        }
    }
}

/// The cubic convolution kernel of Keys (1981) with a = −0.75.
fn keys(distance: f64) -> f64 {
    let (a, d) = (-0.75, distance.abs());
    if d <= 1.0 {
        ((a + 2.0) * d - (a + 3.0)) * d * d + 1.0
    } else if d < 2.0 {
        ((d - 5.0) * d + 8.0) * d * a - 4.0 * a
    } else {
        0.0
    }
}

impl Tensor {
    /// An image at another size. self: (batch, channels, *size) with one to three spatial axes.
    ///
    /// ```
    /// use thalweg_tensor::{Interpolation, Tensor};
    /// let x = Tensor::from([[[0.0f32, 1.0]]]);
    /// let y = x.interpolate(3, Interpolation::Linear { align_corners: true });
    /// assert_eq!(y.to_vec::<f32>(), [0.0, 0.5, 1.0]);
    /// ```
    #[track_caller]
    pub fn interpolate(&self, size: impl Into<PerAxis>, mode: Interpolation) -> Tensor {
        const OP: &str = "interpolate";
        if !(3..=5).contains(&self.rank()) {
            fail(OpError::Rank {
                op: OP,
                want: "3 to 5 (batch, channels, *size)",
                shape: self.shape().clone(),
            });
        }
        let n = self.rank() - 2;
        let size = or_fail(size.into().list(OP, "size", n, self.shape()));
        if size.contains(&0) || self.shape()[2..].contains(&0) {
            let (value, need) = (format!("{size:?}"), "both images must have pixels");
            fail(OpError::Argument { op: OP, name: "size", value, shape: self.shape().clone(), need });
        }
        if mode == Interpolation::Area {
            return match n {
                1 => self.adaptive_avg_pool1d(&size[..]),
                2 => self.adaptive_avg_pool2d(&size[..]),
                _ => self.adaptive_avg_pool3d(&size[..]),
            };
        }
        (0..n).fold(self.clone(), |x, i| resize_axis(&x, 2 + i, size[i], mode))
    }

    /// (batch, channels · r², height, width) → (batch, channels, height · r, width · r): each group of
    /// r² channels becomes a tile of r × r pixels.
    #[track_caller]
    pub fn pixel_shuffle(&self, r: usize) -> Tensor {
        let op = "pixel_shuffle";
        let (lead, [c, h, w]) = image(op, self);
        if r == 0 || !c.is_multiple_of(r * r) {
            let need = "the number of channels must be a multiple of r²";
            fail(OpError::Argument {
                op,
                name: "r",
                value: r.to_string(),
                shape: self.shape().clone(),
                need,
            });
        }
        let x = self.reshape([lead.numel(), c / (r * r), r, r, h, w]).permute([0, 1, 4, 2, 5, 3]);
        x.reshape(lead.iter().copied().chain([c / (r * r), h * r, w * r]).collect::<Shape>())
    }

    /// The inverse of [`Tensor::pixel_shuffle`].
    #[track_caller]
    pub fn pixel_unshuffle(&self, r: usize) -> Tensor {
        let op = "pixel_unshuffle";
        let (lead, [c, h, w]) = image(op, self);
        if r == 0 || !h.is_multiple_of(r) || !w.is_multiple_of(r) {
            let need = "height and width must be multiples of r";
            fail(OpError::Argument {
                op,
                name: "r",
                value: r.to_string(),
                shape: self.shape().clone(),
                need,
            });
        }
        let x = self.reshape([lead.numel(), c, h / r, r, w / r, r]).permute([0, 1, 3, 5, 2, 4]);
        x.reshape(lead.iter().copied().chain([c * r * r, h / r, w / r]).collect::<Shape>())
    }
}

/// The leading sizes, and channels, height and width.
#[track_caller]
fn image(op: &'static str, x: &Tensor) -> (Shape, [usize; 3]) {
    match x.shape()[..] {
        [ref lead @ .., c, h, w] => (lead.into(), [c, h, w]),
        _ => {
            fail(OpError::Rank { op, want: "at least 3 (channels, height, width)", shape: x.shape().clone() })
        }
    }
}

/// Each output position is a weighted sum of a few positions of the input.
#[track_caller]
fn resize_axis(x: &Tensor, axis: usize, output: usize, mode: Interpolation) -> Tensor {
    let taps = mode.taps(x.shape()[axis], output);
    let column: Shape = (0..x.rank()).map(|i| if i == axis { output } else { 1 }).collect();
    let plain = taps.len() == 1;
    let part = |(index, weight): (Vec<i64>, Vec<f64>)| {
        let picked = x.index_select(axis as isize, &Tensor::from(index));
        if plain { picked } else { picked * Tensor::from_vec(weight, &column).to_dtype(x.dtype()) }
    };
    taps.into_iter().map(part).reduce(|a, b| a + b).expect("there is at least one tap")
}
