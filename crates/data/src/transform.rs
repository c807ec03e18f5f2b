//! Changing inputs on their way to the model, at random where that helps.

use thalweg_core::{Buffer, DType};
use thalweg_tensor::Tensor;

use crate::dataset::Dataset;
use crate::draw::{Draw, DrawRng};

/// A change to the inputs of a batch. `rngs` has one source of random numbers per sample; what is drawn from
/// it depends on nothing but seed, epoch and sample. Closures of this form are transforms too.
pub trait Transform: Clone + Send + Sync + 'static {
    /// The changed inputs; the first axis counts samples.
    fn apply(&self, x: Tensor, rngs: &mut [DrawRng]) -> Tensor;
}

impl<F> Transform for F
where
    F: Fn(Tensor, &mut [DrawRng]) -> Tensor + Clone + Send + Sync + 'static,
{
    fn apply(&self, x: Tensor, rngs: &mut [DrawRng]) -> Tensor {
        self(x, rngs)
    }
}

/// A batch whose inputs can be changed.
pub trait Inputs {
    /// The batch with other inputs.
    fn map_inputs(self, f: impl FnOnce(Tensor) -> Tensor) -> Self;
}

impl<Y> Inputs for (Tensor, Y) {
    fn map_inputs(self, f: impl FnOnce(Tensor) -> Tensor) -> Self {
        (f(self.0), self.1)
    }
}

impl<B: Inputs, E> Inputs for Result<B, E> {
    fn map_inputs(self, f: impl FnOnce(Tensor) -> Tensor) -> Self {
        self.map(|b| b.map_inputs(f))
    }
}

/// A data set with its inputs changed; see [`Dataset::transformed`].
///
/// ```
/// use thalweg_data::{Dataset, Examples, Normalize, RandomFlip};
/// use thalweg_tensor::Tensor;
/// let images = Tensor::arange(8).reshape([2, 1, 2, 2]).to_dtype(thalweg_core::DType::F32);
/// let data = Examples::new(images, Tensor::from([0i64, 1]))?
///     .transformed(RandomFlip::horizontal(0.5))
///     .transformed(Normalize::scalar(3.5, 2.0));
/// let (x, _) = data.batches(2).shuffled(0).into_iter().next().unwrap();
/// assert_eq!(x.mean(()).item::<f32>(), 0.0);
/// # Ok::<(), thalweg_data::DataError>(())
/// ```
#[derive(Debug, Clone)]
pub struct Transformed<D, T> {
    data: D,
    transform: T,
    stream: u32,
}

impl<D: Dataset, T> Transformed<D, T> {
    pub(crate) fn new(data: D, transform: T) -> Self {
        Self { stream: data.streams(), data, transform }
    }
}

impl<D: Dataset<Batch: Inputs>, T: Transform> Dataset for Transformed<D, T> {
    type Batch = D::Batch;
    fn len(&self) -> usize {
        self.data.len()
    }
    fn batch(&self, draws: &[Draw]) -> D::Batch {
        let mut rngs: Vec<DrawRng> = draws.iter().map(|d| d.rng(self.stream)).collect();
        self.data.batch(draws).map_inputs(|x| self.transform.apply(x, &mut rngs))
    }
    fn streams(&self) -> u32 {
        self.stream + 1
    }
}

/// `(x − mean) / std`, for all elements or per channel (axis 1).
#[derive(Debug, Clone)]
pub struct Normalize {
    mean: Tensor,
    std: Tensor,
}

impl Normalize {
    /// One mean and one standard deviation for everything.
    pub fn scalar(mean: f32, std: f32) -> Self {
        Self { mean: Tensor::from([mean]), std: Tensor::from([std]) }
    }

    /// One mean and one standard deviation per channel of images `(N, C, H, W)`.
    /// Panics when the numbers of channels differ.
    #[track_caller]
    pub fn channels(mean: &[f32], std: &[f32]) -> Self {
        assert_eq!(mean.len(), std.len(), "Normalize: as many means as standard deviations");
        let column = |v: &[f32]| Tensor::from_slice(v, [v.len(), 1, 1]);
        Self { mean: column(mean), std: column(std) }
    }
}

impl Transform for Normalize {
    fn apply(&self, x: Tensor, _: &mut [DrawRng]) -> Tensor {
        (x - &self.mean) / &self.std
    }
}

/// Mirrors each image `(.., H, W)` with some probability.
#[derive(Debug, Clone, Copy)]
pub struct RandomFlip {
    p: f32,
    axis: Axis,
}

#[derive(Debug, Clone, Copy)]
enum Axis {
    Rows,
    Columns,
}

impl RandomFlip {
    /// Left for right.
    pub fn horizontal(p: f32) -> Self {
        Self { p, axis: Axis::Columns }
    }

    /// Top for bottom.
    pub fn vertical(p: f32) -> Self {
        Self { p, axis: Axis::Rows }
    }
}

impl Transform for RandomFlip {
    #[track_caller]
    fn apply(&self, x: Tensor, rngs: &mut [DrawRng]) -> Tensor {
        let flips: Vec<bool> = rngs.iter_mut().map(|r| r.coin(self.p)).collect();
        let (h, w) = image_sizes("RandomFlip", &x);
        remap(&x, h, w, |sample, row, col| {
            let (row, col) = match (flips[sample], self.axis) {
                (false, _) => (row, col),
                (true, Axis::Columns) => (row, w - 1 - col),
                (true, Axis::Rows) => (h - 1 - row, col),
            };
            Some((row, col))
        })
    }
}

/// Surrounds each image `(.., H, W)` with zeros and cuts a window out at a random place.
#[derive(Debug, Clone, Copy)]
pub struct RandomCrop {
    height: usize,
    width: usize,
    padding: usize,
}

impl RandomCrop {
    /// Windows of `height` × `width` from images with `padding` zeros on each side.
    pub fn new(height: usize, width: usize, padding: usize) -> Self {
        Self { height, width, padding }
    }
}

impl Transform for RandomCrop {
    #[track_caller]
    fn apply(&self, x: Tensor, rngs: &mut [DrawRng]) -> Tensor {
        let (h, w) = image_sizes("RandomCrop", &x);
        let (padded_h, padded_w, p) = (h + 2 * self.padding, w + 2 * self.padding, self.padding);
        assert!(
            self.height <= padded_h && self.width <= padded_w,
            "RandomCrop: no window of {} x {} in images of {h} x {w} with {p} of padding",
            self.height,
            self.width
        );
        let corners: Vec<(usize, usize)> = rngs
            .iter_mut()
            .map(|r| (r.below(padded_h - self.height + 1), r.below(padded_w - self.width + 1)))
            .collect();
        remap(&x, self.height, self.width, |sample, row, col| {
            let (top, left) = corners[sample];
            let (row, col) = ((top + row).checked_sub(p)?, (left + col).checked_sub(p)?);
            (row < h && col < w).then_some((row, col))
        })
    }
}

#[track_caller]
fn image_sizes(who: &str, x: &Tensor) -> (usize, usize) {
    let s = x.shape();
    assert!(
        s.rank() >= 3 && x.dtype() == DType::F32,
        "{who}: takes f32 images (N, .., H, W), got {}",
        x.meta()
    );
    (s[s.rank() - 2], s[s.rank() - 1])
}

/// Images of `h` × `w` whose pixels come from the place that `from(sample, row, col)` says, or are zero.
fn remap(
    x: &Tensor,
    h: usize,
    w: usize,
    from: impl Fn(usize, usize, usize) -> Option<(usize, usize)>,
) -> Tensor {
    let x = x.contiguous();
    let source = x.as_slice::<f32>().expect("made contiguous above");
    let rank = x.rank();
    let (old_h, old_w) = (x.shape()[rank - 2], x.shape()[rank - 1]);
    let planes: usize = x.shape()[1..rank - 2].iter().product();
    let shape = x.shape().with(rank - 2, h).with(rank - 1, w);
    let mut out = Buffer::zeros(DType::F32, shape.numel());
    if planes * h * w > 0 {
        for (k, plane) in out.as_mut_slice::<f32>().chunks_exact_mut(h * w).enumerate() {
            let source = &source[k * old_h * old_w..];
            for (row, line) in plane.chunks_exact_mut(w).enumerate() {
                for (col, pixel) in line.iter_mut().enumerate() {
                    if let Some((r, c)) = from(k / planes, row, col) {
                        *pixel = source[r * old_w + c];
                    }
                }
            }
        }
    }
    Tensor::from_buffer(out, shape)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn images() -> Tensor {
        (Tensor::arange(2 * 3 * 4 * 5) + 1).to_dtype(DType::F32).reshape([2, 3, 4, 5])
    }

    fn rngs(epoch: u64) -> Vec<DrawRng> {
        (0..2).map(|i| Draw::new(3, epoch, i).rng(0)).collect()
    }

    #[test]
    fn a_certain_flip_reverses_an_axis_and_an_impossible_one_nothing() {
        let x = images();
        let flipped = RandomFlip::horizontal(1.0).apply(x.clone(), &mut rngs(0));
        assert_eq!(flipped.to_vec::<f32>(), x.flip([3]).to_vec::<f32>());
        let flipped = RandomFlip::vertical(1.0).apply(x.clone(), &mut rngs(0));
        assert_eq!(flipped.to_vec::<f32>(), x.flip([2]).to_vec::<f32>());
        let same = RandomFlip::vertical(0.0).apply(x.clone(), &mut rngs(0));
        assert_eq!(same.to_vec::<f32>(), x.to_vec::<f32>());
    }

    #[test]
    fn a_crop_is_a_window_of_the_padded_image() {
        let x = images();
        // The slow way: every window of the padded image.
        let padded = x.pad(&[1, 1, 1, 1], thalweg_tensor::PadMode::Constant(0.0));
        let mut seen = std::collections::BTreeSet::new();
        for epoch in 0..60 {
            let got = RandomCrop::new(4, 5, 1).apply(x.clone(), &mut rngs(epoch));
            for sample in 0..2usize {
                let image = got.i(sample).to_vec::<f32>();
                let found = (0..3)
                    .flat_map(|t| (0..3).map(move |l| (t, l)))
                    .find(|&(t, l)| padded.i((sample, .., t..t + 4, l..l + 5)).to_vec::<f32>() == image);
                seen.insert(found.expect("a crop that is no window"));
            }
        }
        assert_eq!(seen.len(), 9, "not every place was chosen in 120 crops: {seen:?}");
    }

    #[test]
    fn normalising_by_channel_uses_each_channels_numbers() {
        let x = Tensor::from([[[[1.0f32, 3.0]], [[10.0, 20.0]]]]);
        let y = Normalize::channels(&[1.0, 10.0], &[2.0, 5.0]).apply(x, &mut []);
        assert_eq!(y.to_vec::<f32>(), [0.0, 1.0, 0.0, 2.0]);
    }
}
