//! Sparse logistic regression with L2 penalty on a LIBSVM file. Each slot has a part of the samples; a step
//! pulls only the weights of the features that its samples have, and pushes only their gradients, divided by
//! a bound on their curvature. The server's rule is momentum, written here, or Adagrad without rounds.
//!
//!     logistic FILE [CLOCKS]            (for example a9a or a9a.gz)
//!     thalweg launch --workers 4 --servers 2 --sync ssp:3 -- target/release/examples/logistic a9a.gz
//!
//! On a9a with four slots and 1000 clocks: 0.32451 under bsp, which is the minimum; one run each under ssp:3
//! and async ended at 0.3247 and 0.3258, and no two such runs are alike.

mod shared;

use std::sync::Arc;

use thalweg_cluster::UpdateRule;
use thalweg_cluster::state::Wants;
use thalweg_cluster::table::{Delta, Init, Want};
use thalweg_cluster::{Cluster, Gradients, Program, Pulled, Registry, Rule, Slot, Step, TableId, TableSpec};

const W: TableId = TableId(0);
const PENALTY: f32 = 1e-4;

struct Sample {
    label: f32, // -1 or 1
    features: Vec<(u64, f32)>,
}

/// Heavy ball: the state is the velocity.
struct Momentum {
    keep: f32,
    rate: f32,
}

impl UpdateRule for Momentum {
    fn state_per_value(&self) -> usize {
        1
    }

    fn update(&self, _step: u64, value: &[f32], grad: &[f32], state: &mut [f32], out: &mut [f32]) {
        for (((o, v), g), velocity) in out.iter_mut().zip(value).zip(grad).zip(state) {
            *velocity = self.keep * *velocity + g;
            *o = v - self.rate * *velocity;
        }
    }
}

struct Logistic {
    samples: Vec<Sample>,
    curvature: Vec<f32>, // by feature: a bound on the second derivative
    clocks: u64,
}

impl Logistic {
    fn new(samples: Vec<Sample>, clocks: u64) -> Self {
        let n_features =
            samples.iter().flat_map(|s| &s.features).map(|f| f.0 as usize + 1).max().unwrap_or(0);
        let mut curvature = vec![PENALTY; n_features];
        for (i, x) in samples.iter().flat_map(|s| &s.features) {
            curvature[*i as usize] += 0.25 * x * x / samples.len() as f32;
        }
        Self { samples, curvature, clocks }
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
        self.rows(step).into_iter().zip(pulled[&W].iter()).for_each(|(i, v)| w[i as usize] = *v);
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
        let values = rows.iter().map(|i| gradient[*i as usize] / self.curvature[*i as usize]).collect();
        vec![(W, Delta::Rows(Arc::new(rows), Arc::new(values)))]
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::with(Registry::default().rule("momentum", Momentum { keep: 0.95, rate: 0.1 }))?;
    let path = std::env::args().nth(1).ok_or("usage: logistic FILE [CLOCKS]")?;
    let clocks: u64 = std::env::args().nth(2).map_or(Ok(1000), |e| e.parse())?;
    let model = Logistic::new(read(&path)?, clocks);
    let (first, sync) = (cluster.is_first(), cluster.sync());
    // Momentum diverges on gradients of old weights; Adagrad takes them as they come.
    let momentum = Rule::Named("momentum".into());
    let rule = if sync.gathers() { momentum } else { Rule::Adagrad { lr: 0.3, eps: 1e-8 } };
    let w = TableSpec::Rows { width: 1, init: Init::Zero, rule };
    let run = cluster.run(&[w], clocks, &model)?;
    if first {
        let w = model.weights(Step { slot: Slot(0), n_slots: 1, clock: clocks }, &run.pulled);
        let idle = 100.0 * run.waited.as_secs_f64() / run.elapsed.as_secs_f64();
        println!("{sync}: objective {:.6}, {} steps here, {idle:.0} % idle", model.objective(&w), run.steps);
    }
    Ok(())
}

fn read(path: &str) -> Result<Vec<Sample>, Box<dyn std::error::Error>> {
    let text = shared::text(path)?;
    let sample = |line: &str| {
        let mut words = line.split_whitespace();
        let label = words.next()?.parse::<f32>().ok()?.signum();
        let feature = |w: &str| w.split_once(':').and_then(|(i, x)| Some((i.parse().ok()?, x.parse().ok()?)));
        Some(Sample { label, features: words.map(feature).collect::<Option<_>>()? })
    };
    let lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty());
    let samples = lines.map(|(i, l)| sample(l).ok_or_else(|| format!("{path}:{}: no LIBSVM line", i + 1)));
    Ok(samples.collect::<Result<_, _>>()?)
}
