//! Many threads of one process on the same weights, without locks (Niu et al. 2011).
//!
//! Each weight is an atomic number: an addition is never torn and never lost, but a thread may read weights of
//! different moments. That does no harm where a step touches few of many. It costs a compare and exchange per weight: see
//! `docs/benchmarks.md` before choosing it over one thread, and `crates/cluster/examples/hogwild.rs` for how it is used.

use std::sync::atomic::{AtomicU32, Ordering};

/// Weights that threads share.
///
/// ```
/// use thalweg_cluster::Hogwild;
/// let weights = Hogwild::new(&[0.0; 100]);
/// weights.run(2, 1000, |w, step| w.add(step as usize % 100, 0.5));
/// assert_eq!(weights.values(), [5.0; 100]);
/// ```
pub struct Hogwild(Vec<AtomicU32>);

impl Hogwild {
    /// Weights with these values.
    pub fn new(values: &[f32]) -> Self {
        Self(values.iter().map(|v| AtomicU32::new(v.to_bits())).collect())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// One weight as it is now.
    pub fn get(&self, i: usize) -> f32 {
        f32::from_bits(self.0[i].load(Ordering::Relaxed))
    }

    /// Adds to one weight.
    pub fn add(&self, i: usize, change: f32) {
        let moved = |bits| Some((f32::from_bits(bits) + change).to_bits());
        // Relaxed: nothing else is published by a weight.
        let added = self.0[i].fetch_update(Ordering::Relaxed, Ordering::Relaxed, moved);
        added.expect("the change is never refused");
    }

    /// All weights; a cut through time only when no thread runs.
    pub fn values(&self) -> Vec<f32> {
        (0..self.len()).map(|i| self.get(i)).collect()
    }

    /// Takes the steps `0..steps` on so many threads, each step once, in any order.
    pub fn run(&self, threads: usize, steps: u64, step: impl Fn(&Self, u64) + std::marker::Sync) {
        let threads = threads.max(1) as u64;
        std::thread::scope(|scope| {
            for thread in 0..threads {
                let step = &step;
                scope.spawn(move || (thread..steps).step_by(threads as usize).for_each(|i| step(self, i)));
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::mix;

    #[test]
    fn no_addition_is_lost_when_all_threads_meet_at_one_weight() {
        let weights = Hogwild::new(&[0.0]);
        weights.run(4, 40_000, |w, _| w.add(0, 1.0));
        assert_eq!(weights.values(), [40_000.0]);
    }

    #[test]
    fn sparse_least_squares_converges_without_locks() {
        let n = 200;
        let truth = |i: usize| (i % 7) as f32 - 3.0;
        let weights = Hogwild::new(&vec![0.0; n]);
        // A sample is the sum of three weights.
        weights.run(4, 60_000, |w, step| {
            let features = [1, 2, 3].map(|k| (mix(step * 3 + k) % n as u64) as usize);
            let error: f32 = features.iter().map(|i| w.get(*i) - truth(*i)).sum();
            features.iter().for_each(|i| w.add(*i, -0.1 * error));
        });
        let worst = (0..n).map(|i| (weights.get(i) - truth(i)).abs()).fold(0.0, f32::max);
        assert!(worst < 0.05, "{worst}");
    }
}
