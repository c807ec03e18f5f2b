//! Gradients of several small batches as one.

use std::collections::BTreeMap;

use thalweg_core::DType;
use thalweg_tensor::{OpError, Param, Tensor, no_grad};

use crate::module::{Module, Named};

/// Adds up gradients, for batches that do not fit into memory at once.
///
/// ```
/// use thalweg_nn::{Accumulator, Sgd};
/// use thalweg_tensor::{Param, Tensor};
/// let w = Param::new("w", Tensor::from([1.0f32]));
/// let (mut sums, mut opt) = (Accumulator::new(), Sgd::new(0.1));
/// for x in [1.0, 3.0] {
///     sums.add(&w, &(w.get() * x).sum(()));
/// }
/// opt.step_with(&w, &sums.take_mean(&w)); // the gradient is 2
/// assert_eq!(w.get().item::<f32>(), 0.8);
/// ```
#[derive(Debug)]
pub struct Accumulator {
    sums: BTreeMap<String, Param>,
    count: Param,
}

impl Default for Accumulator {
    fn default() -> Self {
        Self::new()
    }
}

impl Accumulator {
    /// Nothing yet.
    pub fn new() -> Self {
        let count = Param::state("count", Tensor::full((), 0.0, DType::F64));
        Self { sums: BTreeMap::new(), count }
    }

    /// Adds the gradient of a loss for each trainable parameter. Panics, naming it, for one that the
    /// loss does not depend on.
    #[track_caller]
    pub fn add(&mut self, net: &(impl Module + ?Sized), loss: &Tensor) {
        if let Err(error) = self.try_add(net, loss) {
            panic!("{error}");
        }
    }

    /// [`Accumulator::add`] as a `Result`; an error leaves everything as it was.
    pub fn try_add(&mut self, net: &(impl Module + ?Sized), loss: &Tensor) -> Result<(), OpError> {
        let params = net.trainable();
        let gradients = loss.try_grad(&params.iter().collect::<Vec<_>>())?;
        no_grad(|| {
            for (p, g) in params.iter().zip(gradients) {
                let sum = self.sum(p);
                sum.set(sum.get() + g);
            }
            self.count.set(self.count.get() + 1.0);
        });
        Ok(())
    }

    /// The mean of what was added since the last time, in the order of `net.trainable()`, for
    /// [`Optimizer::step_with`](crate::Optimizer::step_with). Starts anew.
    pub fn take_mean(&mut self, net: &(impl Module + ?Sized)) -> Vec<Tensor> {
        no_grad(|| {
            let count = self.count.get();
            let mean = |p: &Named| {
                let sum = self.sum(p);
                let total = sum.get();
                sum.set(total.zeros_like());
                &total / count.to_dtype(total.dtype())
            };
            let means = net.trainable().iter().map(mean).collect();
            self.count.set(count.zeros_like());
            means
        })
    }

    /// What a checkpoint between two steps holds: `count` and the sums, called `<parameter>.grad_sum`.
    pub fn state(&self) -> Vec<Named> {
        let count = Named { name: "count".to_owned(), param: self.count.clone() };
        let sums = self.sums.iter().map(|(name, p)| Named { name: name.clone(), param: p.clone() });
        [count].into_iter().chain(sums).collect()
    }

    fn sum(&mut self, Named { name, param }: &Named) -> Param {
        let name = format!("{name}.grad_sum");
        let meta = param.meta();
        let zeros = || Param::state(&name, Tensor::zeros(meta.shape, meta.dtype));
        self.sums.entry(name.clone()).or_insert_with(zeros).clone()
    }
}
