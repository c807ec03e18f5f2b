//! Averages of weights over time: exponential (EMA) and equal (SWA).

use thalweg_core::DType;
use thalweg_tensor::{Param, Tensor, no_grad};

use crate::module::{Module, Named};

/// A second set of weights: the average of those that training passes through. Buffers, such as running
/// statistics, are not averaged; after equal averaging, run batches through the net in training mode to
/// fit them to the new weights.
///
/// ```
/// use thalweg_nn::Average;
/// use thalweg_tensor::{Param, Tensor};
/// let w = Param::new("w", Tensor::from([0.0f32]));
/// let mut average = Average::equal(&w);
/// for x in [1.0f32, 2.0, 6.0] {
///     w.set(Tensor::from([x]));
///     average.update(&w);
/// }
/// let averaged = average.with(&w, || w.get().item::<f32>());
/// assert_eq!((averaged, w.get().item::<f32>()), (3.0, 6.0));
/// ```
#[derive(Debug)]
pub struct Average {
    weights: Vec<Named>,
    count: Param,
    kind: Kind,
}

#[derive(Debug, Clone, Copy)]
enum Kind {
    /// The share that the old average keeps.
    Exponential(f64),
    Equal,
}

impl Average {
    /// The exponential moving average: avg ← decay · avg + (1 − decay) · w, from the present weights.
    pub fn exponential(net: &(impl Module + ?Sized), decay: f64) -> Self {
        Self::new(net, Kind::Exponential(decay))
    }

    /// The plain mean of all weights that `update` sees (Izmailov et al., 2018).
    pub fn equal(net: &(impl Module + ?Sized)) -> Self {
        Self::new(net, Kind::Equal)
    }

    fn new(net: &(impl Module + ?Sized), kind: Kind) -> Self {
        let weights = net.params().into_iter().map(|Named { name, param }| {
            let name = format!("{name}.average");
            Named { param: Param::state(&name, param.get()), name }
        });
        let count = Param::state("count", Tensor::full((), 0.0, DType::F64));
        Self { weights: weights.collect(), count, kind }
    }

    /// Takes the present weights in. Call it after a step of the optimiser; it can be compiled with it.
    #[track_caller]
    pub fn update(&mut self, net: &(impl Module + ?Sized)) {
        no_grad(|| {
            self.count.set(self.count.get() + 1.0);
            let share = match self.kind {
                Kind::Exponential(decay) => Tensor::full((), 1.0 - decay, DType::F64),
                Kind::Equal => 1.0 / self.count.get(),
            };
            for (average, weight) in self.pairs(net) {
                let (old, new) = (average.get(), weight.get().stop_gradient());
                average.set(&old + (new - &old) * share.to_dtype(old.dtype()));
            }
        });
    }

    /// Runs `f` while `net` has the averaged weights, and puts its own back afterwards, also when `f`
    /// panics.
    #[track_caller]
    pub fn with<R>(&self, net: &(impl Module + ?Sized), f: impl FnOnce() -> R) -> R {
        struct Restore(Vec<(Param, Tensor)>);
        impl Drop for Restore {
            fn drop(&mut self) {
                self.0.drain(..).for_each(|(param, value)| param.set(value));
            }
        }
        let pairs = self.pairs(net);
        let _restore = Restore(pairs.iter().map(|(_, w)| (w.clone(), w.get())).collect());
        pairs.iter().for_each(|(average, weight)| weight.set(average.get()));
        f()
    }

    /// Gives `net` the averaged weights for good.
    #[track_caller]
    pub fn copy_to(&self, net: &(impl Module + ?Sized)) {
        self.pairs(net).iter().for_each(|(average, weight)| weight.set(average.get()));
    }

    /// What a checkpoint holds: `count` and the averages, called `<parameter>.average`.
    pub fn state(&self) -> Vec<Named> {
        let count = Named { name: "count".to_owned(), param: self.count.clone() };
        [count].into_iter().chain(self.weights.iter().cloned()).collect()
    }

    #[track_caller]
    fn pairs(&self, net: &(impl Module + ?Sized)) -> Vec<(Param, Param)> {
        let params = net.params();
        let same = params.len() == self.weights.len()
            && params
                .iter()
                .zip(&self.weights)
                .all(|(p, a)| a.name.strip_suffix(".average") == Some(&p.name));
        assert!(same, "average: it was made for a net with other parameters");
        self.weights.iter().map(|a| a.param.clone()).zip(params.into_iter().map(|p| p.param)).collect()
    }
}

#[cfg(test)]
mod tests {
    use thalweg_tensor::{Param, Tensor};

    use super::Average;

    #[test]
    fn an_exponential_average_forgets() {
        let w = Param::new("w", Tensor::from([0.0f32]));
        let mut average = Average::exponential(&w, 0.75);
        for x in [4.0f32, 8.0] {
            w.set(Tensor::from([x]));
            average.update(&w);
        }
        // 0 → 1 → 0.75 · 1 + 0.25 · 8
        assert_eq!(average.with(&w, || w.get().item::<f32>()), 2.75);
        average.copy_to(&w);
        assert_eq!(w.get().item::<f32>(), 2.75);
    }

    #[test]
    fn weights_come_back_when_the_closure_panics() {
        let w = Param::new("w", Tensor::from([1.0f32]));
        let average = Average::equal(&w);
        w.set(Tensor::from([5.0f32]));
        let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| average.with(&w, || panic!())));
        assert!(caught.is_err());
        assert_eq!(w.get().item::<f32>(), 5.0);
    }
}
