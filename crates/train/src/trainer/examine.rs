//! Measuring a net on data that it does not learn from.

use std::collections::BTreeMap;

use thalweg_core::DType;
use thalweg_nn::{Average, Module};
use thalweg_runtime::Tree;
use thalweg_tensor::{Tensor, no_grad};

use super::runner::Runner;
use super::{Measure, Observe, Passes, VALIDATION_LOSS};
use crate::error::TrainError;

/// What is measured, and how.
pub(super) struct Examiner<'a, N, B, F> {
    pub net: &'a N,
    pub metrics: &'a [(String, Measure<N, B>)],
    pub observers: &'a [(String, Observe<N>)],
    pub validation: Option<&'a Passes<B>>,
    pub runner: Runner<B, Vec<Tensor>, F>,
}

impl<N: Module, B: Tree, F: Fn(B) -> Vec<Tensor> + Copy> Examiner<'_, N, B, F> {
    /// All numbers, with the averaged weights if there are any.
    pub fn examine(&mut self, average: Option<&Average>) -> Result<BTreeMap<String, f64>, TrainError> {
        let net = self.net;
        net.eval();
        let found = match average {
            Some(average) => average.with(net, || self.numbers()),
            None => self.numbers(),
        };
        net.train(true);
        found
    }

    fn numbers(&mut self) -> Result<BTreeMap<String, f64>, TrainError> {
        let mut found = BTreeMap::new();
        if let Some(validation) = self.validation {
            let names = [VALIDATION_LOSS].into_iter().chain(self.metrics.iter().map(|(n, _)| n.as_str()));
            let names: Vec<&str> = names.collect();
            let (mut sums, mut samples) = (vec![0.0; names.len()], 0);
            for (n, batch) in validation() {
                for (sum, value) in sums.iter_mut().zip(self.runner.call(batch)?) {
                    *sum += n as f64 * value.to_dtype(DType::F64).item::<f64>();
                }
                samples += n;
            }
            found.extend(names.into_iter().zip(sums).map(|(n, sum)| (n.to_owned(), sum / samples as f64)));
        }
        let observed = self.observers.iter().map(|(n, observe)| (n.clone(), no_grad(|| observe(self.net))));
        found.extend(observed);
        Ok(found)
    }
}

/// The loss of a validation batch and its metrics, in the order of their names.
pub(super) fn measures<'a, N, B: Tree>(
    net: &'a N,
    loss: &'a impl Fn(&N, B) -> Tensor,
    metrics: &'a [(String, Measure<N, B>)],
) -> impl Fn(B) -> Vec<Tensor> + Copy + 'a {
    move |batch: B| {
        let again = || batch.map(&mut Tensor::clone);
        no_grad(|| {
            let others = metrics.iter().map(|(_, measure)| measure(net, again()));
            [loss(net, again())].into_iter().chain(others).collect()
        })
    }
}
