//! Workers that take steps of their own between two pushes: local SGD and elastic averaging. This is the bare form, for
//! programs without a net; a [`Trainer`](thalweg_train::Trainer) has it by `sync(Sync::Local(8))`.
//!
//! The table holds the common weights and its rule is [`Rule::Add`](crate::Rule::Add). A clock is so many steps of a
//! worker's own.

use std::collections::BTreeMap;

use crate::cluster::{Gradients, Program, Pulled, Step};
use crate::ids::{Slot, TableId};
use crate::table::Delta;

/// What the common weights get from a worker's own.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Averaging {
    /// Their mean; all go on from it (McMahan et al. 2017; Stich 2019).
    Local,
    /// Both are drawn towards each other by this share of their distance (Zhang et al. 2015). A worker keeps weights of
    /// its own; who takes over a slot begins with the common ones.
    Elastic(f32),
}

impl Averaging {
    /// What part of the distance between a worker's own weights and the common ones is pushed.
    pub(crate) fn share(self, n_slots: usize) -> f32 {
        match self {
            Averaging::Local => 1.0 / n_slots as f32,
            Averaging::Elastic(share) => share,
        }
    }
}

/// A program of local steps: `step(part, number, weights)` moves the weights once.
///
/// ```
/// use thalweg_cluster::{Averaging, Cluster, LocalSteps, Rule, Step, TableId, TableSpec};
///
/// let w = TableSpec::Dense { values: vec![0.0; 2].into(), rule: Rule::Add };
/// let towards_one = |_: Step, _: u64, w: &mut [f32]| w.iter_mut().for_each(|w| *w -= 0.1 * (*w - 1.0));
/// let program = LocalSteps::new(Averaging::Local, 5, towards_one);
/// let run = Cluster::from_env()?.with_slots(2).run(&[w], 20, program)?;
/// assert!(run.pulled[&TableId(0)].iter().all(|w| (w - 1.0).abs() < 1e-3));
/// # Ok::<(), thalweg_cluster::ClusterError>(())
/// ```
pub struct LocalSteps<F> {
    averaging: Averaging,
    per_clock: u64,
    step: F,
    own: BTreeMap<Slot, Vec<f32>>,
}

impl<F: FnMut(Step, u64, &mut [f32])> LocalSteps<F> {
    /// So many steps per clock.
    pub fn new(averaging: Averaging, per_clock: u64, step: F) -> Self {
        Self { averaging, per_clock, step, own: BTreeMap::new() }
    }
}

impl<F: FnMut(Step, u64, &mut [f32])> Program for LocalSteps<F> {
    fn compute(&mut self, step: Step, pulled: &Pulled) -> Gradients {
        let common = &pulled[&TableId(0)];
        let mut own = match self.averaging {
            Averaging::Local => common.to_vec(),
            Averaging::Elastic(_) => self.own.remove(&step.slot).unwrap_or_else(|| common.to_vec()),
        };
        for i in 0..self.per_clock {
            (self.step)(step, step.clock * self.per_clock + i, &mut own);
        }
        let share = self.averaging.share(step.n_slots);
        let drawn: Vec<f32> = own.iter().zip(common.iter()).map(|(w, c)| share * (w - c)).collect();
        if let Averaging::Elastic(_) = self.averaging {
            own.iter_mut().zip(&drawn).for_each(|(w, d)| *w -= d);
            self.own.insert(step.slot, own);
        }
        vec![(TableId(0), Delta::Dense(drawn.into()))]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Cluster, Rule, TableSpec};

    /// Slot `k` wants the weight to be `k`; together they want the mean.
    fn settles(averaging: Averaging) -> f32 {
        let w = TableSpec::Dense { values: vec![9.0].into(), rule: Rule::Add };
        let own = |s: Step, _: u64, w: &mut [f32]| w[0] -= 0.05 * (w[0] - s.slot.0 as f32);
        let cluster = Cluster::from_env().unwrap().with_slots(3);
        cluster.run(&[w], 120, LocalSteps::new(averaging, 4, own)).unwrap().pulled[&TableId(0)][0]
    }

    #[test]
    fn workers_with_different_wishes_meet_in_the_middle() {
        for averaging in [Averaging::Local, Averaging::Elastic(0.2)] {
            let met = settles(averaging);
            assert!((met - 1.0).abs() < 1e-3, "{averaging:?}: {met}");
        }
    }
}
