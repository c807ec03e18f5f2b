//! Nets that are known by name.

use thalweg_tensor::Rng;

use crate::layers::{Activation, Conv2d, Flatten, Linear, MaxPool2d, Sequential};

/// LeNet-5 (LeCun, Bottou, Bengio and Haffner, 1998) with today's activations and pooling: 61,706 parameters. Takes rows of
/// 784 grey values or images of 1 × 28 × 28, gives 10 scores.
///
/// ```
/// use thalweg_core::DType;
/// use thalweg_nn::{Layer, Module, models::lenet};
/// use thalweg_tensor::{Rng, Tensor};
/// let net = lenet(&mut Rng::seed(0));
/// assert_eq!(net.forward(&Tensor::zeros([2, 784], DType::F32)).shape()[..], [2, 10]);
/// assert_eq!(net.n_params(), 61_706);
/// ```
pub fn lenet(rng: &mut Rng) -> Sequential {
    Sequential::new()
        .map(|x| x.reshape([x.shape()[0], 1, 28, 28]))
        .then(Conv2d::new(1, 6, 5, rng).padding(2))
        .then(Activation::Relu)
        .then(MaxPool2d::new(2))
        .then(Conv2d::new(6, 16, 5, rng))
        .then(Activation::Relu)
        .then(MaxPool2d::new(2))
        .then(Flatten::default())
        .then(Linear::new(400, 120, rng))
        .then(Activation::Relu)
        .then(Linear::new(120, 84, rng))
        .then(Activation::Relu)
        .then(Linear::new(84, 10, rng))
}

/// Dense layers of these widths with ReLU between them; the first width is that of the input.
///
/// ```
/// use thalweg_nn::{Module, models::mlp};
/// use thalweg_tensor::Rng;
/// assert_eq!(mlp(&[784, 100, 10], &mut Rng::seed(0)).n_params(), 784 * 100 + 100 + 100 * 10 + 10);
/// ```
pub fn mlp(widths: &[usize], rng: &mut Rng) -> Sequential {
    let mut net = Sequential::new();
    for (i, pair) in widths.windows(2).enumerate() {
        if i > 0 {
            net = net.then(Activation::Relu);
        }
        net = net.then(Linear::new(pair[0], pair[1], rng));
    }
    net
}
