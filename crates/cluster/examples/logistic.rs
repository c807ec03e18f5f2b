//! Sparse logistic regression with L2 penalty on a LIBSVM file. Each slot has a part of the samples; a step
//! pulls only the weights of the features that its samples have, and pushes only their gradients, divided by
//! a bound on their curvature. The server's rule, written here, keeps the latest gradient of each slot.
//!
//!     logistic FILE [CLOCKS]            (for example a9a or a9a.gz)
//!     thalweg launch --workers 4 --servers 2 --sync ssp:3 -- target/release/examples/logistic a9a.gz
//!
//! On a9a with four slots and 3000 clocks: 0.32456 under bsp, 0.32454 under ssp:3, 0.32457 under async; the minimum
//! is 0.32451. No two runs under ssp or async are alike.

mod shared;

use std::sync::Arc;

use shared::{Sample, libsvm};
use thalweg_cluster::UpdateRule;
use thalweg_cluster::state::Wants;
use thalweg_cluster::table::{Delta, Init, Want};
use thalweg_cluster::{Cluster, Gradients, Program, Pulled, Registry, Rule, Slot, Step, TableId, TableSpec};

const W: TableId = TableId(0);
const PENALTY: f32 = 1e-4;

/// A row is a weight and the latest gradient of each slot; a push brings that of its own slot, and zeros. The weight
/// moves against the sum of all, so slots that lag or are done leave no bias (Roux et al. 2012), with the rate of
/// Adagrad (Duchi et al. 2011).
struct Average {
    rate: f32,
}

impl UpdateRule for Average {
    fn state_per_value(&self) -> usize {
        1
    }

    fn update(&self, _step: u64, row: &[f32], pushed: &[f32], state: &mut [f32], out: &mut [f32]) {
        for ((o, old), new) in out.iter_mut().zip(row).zip(pushed) {
            *o = if *new == 0.0 { *old } else { *new };
        }
        let gradient: f32 = out[1..].iter().sum();
        state[0] += gradient * gradient;
        out[0] = row[0] - self.rate * gradient / (state[0].sqrt() + 1e-8);
    }
}

struct Logistic {
    samples: Vec<Sample>,
    curvature: Vec<f32>, // by feature: a bound on the second derivative
    n_slots: usize,
    clocks: u64,
}

impl Logistic {
    fn new(samples: Vec<Sample>, clocks: u64, n_slots: usize) -> Self {
        let n_features =
            samples.iter().flat_map(|s| &s.features).map(|f| f.0 as usize + 1).max().unwrap_or(0);
        let mut curvature = vec![PENALTY; n_features];
        for (i, x) in samples.iter().flat_map(|s| &s.features) {
            curvature[*i as usize] += 0.25 * x * x / samples.len() as f32;
        }
        Self { samples, curvature, n_slots, clocks }
    }

    /// The samples of a slot; after the last step, all.
    fn part(&self, step: Step) -> impl Iterator<Item = &Sample> {
        let last = step.clock >= self.clocks;
        let (skip, by) = if last { (0, 1) } else { (step.slot.0 as usize, step.n_slots) };
        self.samples.iter().skip(skip).step_by(by)
    }

    fn rows(&self, step: Step) -> Vec<u64> {
        let mut present = vec![false; self.curvature.len()];
        self.part(step).flat_map(|s| &s.features).for_each(|(i, _)| present[*i as usize] = true);
        (0..).zip(present).filter(|(_, p)| *p).map(|(i, _)| i).collect()
    }

    /// Pulled rows as a vector over all features.
    fn weights(&self, step: Step, pulled: &Pulled) -> Vec<f32> {
        let mut w = vec![0.0; self.curvature.len()];
        self.rows(step)
            .into_iter()
            .zip(pulled[&W].iter().step_by(1 + self.n_slots))
            .for_each(|(i, v)| w[i as usize] = *v);
        w
    }

    fn objective(&self, w: &[f32]) -> f64 {
        let loss = |s: &Sample| f64::from(-margin(s, w)).exp().ln_1p();
        let penalty: f64 = w.iter().map(|w| f64::from(w * w)).sum::<f64>() * 0.5 * f64::from(PENALTY);
        self.samples.iter().map(loss).sum::<f64>() / self.samples.len() as f64 + penalty
    }
}

fn margin(s: &Sample, w: &[f32]) -> f32 {
    s.label * s.features.iter().map(|(i, x)| x * w[*i as usize]).sum::<f32>()
}

impl Program for &Logistic {
    fn wants(&mut self, step: Step, _tables: &[TableSpec]) -> Wants {
        Wants::from([(W, Want::Rows(Arc::new(self.rows(step))))])
    }

    fn compute(&mut self, step: Step, pulled: &Pulled) -> Gradients {
        let w = self.weights(step, pulled);
        let mut gradient: Vec<f32> = w.iter().map(|w| PENALTY * w / step.n_slots as f32).collect();
        for sample in self.part(step) {
            let slope = -sample.label / (1.0 + margin(sample, &w).exp()) / self.samples.len() as f32;
            sample.features.iter().for_each(|(i, x)| gradient[*i as usize] += slope * x);
        }
        let rows = self.rows(step);
        let mut values = vec![0.0; rows.len() * (1 + self.n_slots)];
        for (row, i) in values.chunks_exact_mut(1 + self.n_slots).zip(&rows) {
            row[1 + step.slot.0 as usize] = gradient[*i as usize] / self.curvature[*i as usize];
        }
        vec![(W, Delta::Rows(Arc::new(rows), Arc::new(values)))]
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::with(Registry::default().rule("average", Average { rate: 0.3 }))?;
    let path = std::env::args().nth(1).ok_or("usage: logistic FILE [CLOCKS]")?;
    let clocks: u64 = std::env::args().nth(2).map_or(Ok(3000), |e| e.parse())?;
    let model = Logistic::new(libsvm(&path)?, clocks, cluster.n_slots());
    let (first, sync) = (cluster.is_first(), cluster.sync());
    let w = TableSpec::Rows {
        width: 1 + cluster.n_slots(),
        init: Init::Zero,
        rule: Rule::Named("average".into()),
    };
    let run = cluster.run(&[w], clocks, &model)?;
    if first {
        let w = model.weights(Step { slot: Slot(0), n_slots: 1, clock: clocks }, &run.pulled);
        let idle = 100.0 * run.waited.as_secs_f64() / run.elapsed.as_secs_f64();
        println!("{sync}: objective {:.6}, {} steps here, {idle:.0} % idle", model.objective(&w), run.steps);
    }
    Ok(())
}
