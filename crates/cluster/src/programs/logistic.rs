//! Logistic regression on sparse rows with an L2 penalty, labels ±1. Each slot has a part of the samples; a step pulls
//! only the weights of the features that its samples have, and pushes only their gradients, divided by a bound on
//! their curvature. What the weights cost is computed where they lie. The servers keep the latest gradient of each slot and move against the sum of all, so slots that lag
//! leave no bias (Roux et al. 2012), at the rate of Adagrad (Duchi et al. 2011).

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_data::{Dataset, Sparse};

use super::{Learned, Model};
use crate::cluster::{Gradients, Pulled, Step};
use crate::error::ClusterError;
use crate::ids::TableId;
use crate::rule::Registry;
use crate::state::Wants;
use crate::table::{Delta, Want};

const W: TableId = TableId(0);
/// What the servers say of the weights: the sum of their squares, from each shard.
const SQUARES: TableId = TableId(2);
/// A row: the weight, and the sum of the squares of its gradients.
const WIDTH: usize = 2;
const RATE: f32 = 0.3;

/// Minimises mean log(1 + exp(−y · x·w)) + ½ · penalty · ‖w‖².
pub struct Logistic {
    train: Sparse,
    test: Sparse,
    curvature: Vec<f32>, // by feature: a bound on the second derivative
    penalty: f32,
    slots: OnceCell<Slots>,
}

/// How features fall to the slots.
struct Slots {
    features: Vec<Vec<u64>>, // by slot: those that its samples have
    shares: Vec<f32>,        // by feature: what part of the penalty each slot that has it takes
}

impl Logistic {
    /// Refuses labels other than ±1, and features of the test that the training does not have.
    pub fn new(train: Sparse, test: Sparse, penalty: f64) -> Result<Self, ClusterError> {
        let wrong = train.labels().iter().chain(test.labels()).find(|y| y.abs() != 1.0);
        if let Some(label) = wrong {
            return Err(ClusterError::Samples {
                problem: format!("a label is {label}; there should be -1 and 1 only"),
            });
        }
        if train.len() == 0 || test.n_features() > train.n_features() {
            let (have, want) = (train.n_features(), test.n_features());
            let problem = format!("{} samples with {have} features cannot teach {want}", train.len());
            return Err(ClusterError::Samples { problem });
        }
        let mut curvature = vec![penalty as f32; train.n_features()];
        for row in 0..train.len() {
            entries(&train, row).for_each(|(i, x)| curvature[i] += 0.25 * x * x / train.len() as f32);
        }
        Ok(Self { train, test, curvature, penalty: penalty as f32, slots: OnceCell::new() })
    }

    fn part(&self, step: Step) -> impl Iterator<Item = usize> {
        (step.slot.0 as usize..self.train.len()).step_by(step.n_slots)
    }

    fn slots(&self, n_slots: usize) -> &Slots {
        self.slots.get_or_init(|| {
            let mut present = vec![vec![false; n_slots]; self.curvature.len()];
            for row in 0..self.train.len() {
                entries(&self.train, row).for_each(|(i, _)| present[i][row % n_slots] = true);
            }
            let of = |slot: usize| (0..).zip(&present).filter(|(_, p)| p[slot]).map(|(i, _)| i).collect();
            let share = |p: &Vec<bool>| 1.0 / p.iter().filter(|p| **p).count().max(1) as f32;
            Slots { features: (0..n_slots).map(of).collect(), shares: present.iter().map(share).collect() }
        })
    }
}

fn entries(rows: &Sparse, row: usize) -> impl Iterator<Item = (usize, f32)> {
    let (features, values) = rows.row(row);
    features.iter().map(|i| *i as usize).zip(values.iter().copied())
}

/// y · x·w.
fn margin(rows: &Sparse, row: usize, w: &[f32]) -> f32 {
    rows.labels()[row] * entries(rows, row).map(|(i, x)| x * w[i]).sum::<f32>()
}

impl Model for Logistic {
    fn learned(&self) -> Vec<Learned> {
        let rows = self.curvature.len();
        vec![Learned::Statistics { name: "weights", rows, width: WIDTH, sums: 1, make }]
    }

    fn functions(&self, registry: Registry) -> Registry {
        registry.compute("squares", |rows, _| rows.narrow(1, 0, 1).square().sum(()))
    }

    /// No slot has all weights; the first asks the servers what they cost.
    fn wants(&self, step: Step) -> Option<Wants> {
        let features = self.slots(step.n_slots).features[step.slot.0 as usize].clone();
        let squares = Want::Compute(W, "squares".to_owned(), Default::default());
        let cost = (step.slot.0 == 0).then_some((SQUARES, squares));
        Some([(W, Want::Rows(Arc::new(features)))].into_iter().chain(cost).collect())
    }

    fn step(&self, step: Step, values: &Pulled) -> (Gradients, f64) {
        let Slots { features, shares } = self.slots(step.n_slots);
        let (features, n) = (&features[step.slot.0 as usize], self.train.len() as f32);
        let mut w = vec![0.0; self.curvature.len()];
        features.iter().zip(values[&W].iter().step_by(WIDTH)).for_each(|(i, v)| w[*i as usize] = *v);
        let mut gradient: Vec<f32> =
            w.iter().zip(shares).map(|(w, share)| self.penalty * share * w).collect();
        let squares = values.get(&SQUARES).map_or(0.0, |s| s.iter().map(|s| f64::from(*s)).sum());
        let mut loss = 0.5 * f64::from(self.penalty) * squares;
        for row in self.part(step) {
            let margin = margin(&self.train, row, &w);
            let slope = -self.train.labels()[row] / (1.0 + margin.exp()) / n;
            entries(&self.train, row).for_each(|(i, x)| gradient[i] += slope * x);
            loss += f64::from(-margin).exp().ln_1p() / f64::from(n);
        }
        let scaled = features.iter().map(|i| gradient[*i as usize] / self.curvature[*i as usize]).collect();
        (vec![(W, Delta::Rows(Arc::new(features.clone()), scaled))], loss)
    }

    fn measure(&self, values: &Pulled) -> BTreeMap<String, f64> {
        let w: Vec<f32> = values[&W].iter().copied().step_by(WIDTH).collect();
        let losses = (0..self.train.len()).map(|row| f64::from(-margin(&self.train, row, &w)).exp().ln_1p());
        let objective =
            losses.sum::<f64>() / self.train.len() as f64 + 0.5 * f64::from(self.penalty) * squares(&w);
        let right = (0..self.test.len()).filter(|row| margin(&self.test, *row, &w) > 0.0).count();
        let accuracy = right as f64 / self.test.len().max(1) as f64;
        BTreeMap::from([("objective".to_owned(), objective), ("accuracy".to_owned(), accuracy)])
    }
}

fn squares(w: &[f32]) -> f64 {
    w.iter().map(|w| f64::from(w * w)).sum()
}

fn make(sum: &[f32], row: &mut [f32]) {
    let gradient = sum[0];
    row[1] += gradient * gradient;
    row[0] -= RATE * gradient / (row[1].sqrt() + 1e-8);
}
