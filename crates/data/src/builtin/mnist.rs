//! MNIST, the handwritten digits of LeCun, Cortes and Burges.

use thalweg_core::{Buffer, DType};
use thalweg_tensor::Tensor;

use crate::error::DataError;
use crate::examples::Examples;
use crate::idx;

const TRAIN_IMAGES: &[u8] = include_bytes!("../../assets/mnist/train-images-idx3-ubyte.gz");
const TRAIN_LABELS: &[u8] = include_bytes!("../../assets/mnist/train-labels-idx1-ubyte.gz");
const TEST_IMAGES: &[u8] = include_bytes!("../../assets/mnist/t10k-images-idx3-ubyte.gz");
const TEST_LABELS: &[u8] = include_bytes!("../../assets/mnist/t10k-labels-idx1-ubyte.gz");

/// The two halves of MNIST.
#[derive(Debug, Clone)]
pub struct Mnist {
    /// 60,000 digits.
    pub train: Examples,
    /// 10,000 digits of other writers.
    pub test: Examples,
}

/// Handwritten digits: `x` has rows of 28 × 28 = 784 grey values in `0..=1`, `y` has the digits as i64.
///
/// ```no_run
/// use thalweg_data::Dataset;
/// let data = thalweg_data::mnist()?;
/// for (x, y) in data.train.batches(100).shuffled(0) {
///     assert_eq!(x.shape().to_vec(), [100, 784]);
/// }
/// # Ok::<(), thalweg_data::DataError>(())
/// ```
pub fn mnist() -> Result<Mnist, DataError> {
    Ok(Mnist { train: half(TRAIN_IMAGES, TRAIN_LABELS)?, test: half(TEST_IMAGES, TEST_LABELS)? })
}

fn half(images: &[u8], labels: &[u8]) -> Result<Examples, DataError> {
    let images = idx::parse("mnist images", images)?;
    let labels = idx::parse("mnist labels", labels)?;
    let n = images.shape()[0];
    let mut x = Buffer::scratch(DType::F32, images.numel());
    let grey = images.as_slice::<u8>().expect("read in order");
    x.as_mut_slice::<f32>().iter_mut().zip(grey).for_each(|(x, &g)| *x = f32::from(g) / 255.0);
    Examples::new(Tensor::from_buffer(x, [n, images.numel() / n]), labels.to_dtype(DType::I64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dataset::Dataset;
    use sha2::{Digest, Sha256};

    /// The checksums that other libraries pin for the authors' files.
    #[test]
    fn the_archives_are_the_original_ones() {
        let sum = |bytes: &[u8]| Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect::<String>();
        assert_eq!(sum(TRAIN_IMAGES), "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609");
        assert_eq!(sum(TRAIN_LABELS), "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c");
        assert_eq!(sum(TEST_IMAGES), "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6");
        assert_eq!(sum(TEST_LABELS), "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6");
    }

    #[test]
    fn mnist_has_its_known_sizes_and_statistics() {
        let data = mnist().unwrap();
        assert_eq!((data.train.len(), data.test.len()), (60_000, 10_000));
        assert_eq!(data.test.x.shape().to_vec(), [10_000, 784]);
        // The training set begins 5, 0, 4, 1, 9, and its mean and deviation are in every tutorial.
        assert_eq!(data.train.y.i(0..5).to_vec::<i64>(), [5, 0, 4, 1, 9]);
        let (mean, std) = data.train.mean_std();
        assert!((mean - 0.1307).abs() < 5e-5 && (std - 0.3081).abs() < 5e-5, "{mean} {std}");
        let mut counts = [0; 10];
        data.test.y.to_vec::<i64>().iter().for_each(|&d| counts[d as usize] += 1);
        assert_eq!(counts, [980, 1135, 1032, 1010, 982, 892, 958, 1028, 974, 1009]);
    }
}
