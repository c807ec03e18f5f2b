//! Sparse logistic regression with L2 penalty on a LIBSVM file: each step pulls only the weights of the
//! features that its samples have, and pushes only their gradients.
//!
//!     logistic FILE [EPOCHS]            (for example a9a or a9a.gz)
//!     thalweg launch --workers 4 --servers 2 --sync ssp:3 -- target/release/examples/logistic a9a.gz
//!
//! On a9a it ends at an objective of at most 0.3246; the minimum is 0.32451.

use std::collections::BTreeMap;
use std::io::Read;
use std::sync::Arc;

use thalweg_cluster::state::Wants;
use thalweg_cluster::table::{Delta, Init, Want};
use thalweg_cluster::{Cluster, Gradients, Program, Pulled, Rule, Slot, Step, TableId, TableSpec};

const W: TableId = TableId(0);
const PENALTY: f32 = 1e-4;
/// Samples of one clock, over all slots.
const BATCH: usize = 4096;

struct Sample {
    label: f32, // -1 or 1
    features: Vec<(u64, f32)>,
}

struct Logistic {
    samples: Vec<Sample>,
    clocks: u64,
}

impl Logistic {
    /// The samples of a step: each comes once per epoch, whoever computes it.
    fn batch(&self, step: Step) -> impl Iterator<Item = &Sample> {
        let n = self.samples.len();
        let size = BATCH / step.n_slots;
        let start = (step.clock as usize * step.n_slots + step.slot.0 as usize) * size;
        // 7919 is prime, so the multiples visit every sample before any comes twice.
        (start..start + size).map(move |p| &self.samples[(p % n * 7919 + p / n * 31) % n])
    }

    /// The features of a step's samples; after the last step, all.
    fn rows(&self, step: Step) -> Vec<u64> {
        let all = |samples: &mut dyn Iterator<Item = &Sample>| {
            samples.flat_map(|s| s.features.iter().map(|f| f.0)).collect::<Vec<u64>>()
        };
        let last = step.clock >= self.clocks;
        let mut rows = if last { all(&mut self.samples.iter()) } else { all(&mut self.batch(step)) };
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    fn objective(&self, w: &BTreeMap<u64, f32>) -> f64 {
        let loss = |s: &Sample| f64::from(-margin(s, w)).exp().ln_1p();
        let penalty: f64 = w.values().map(|w| f64::from(w * w)).sum::<f64>() * 0.5 * f64::from(PENALTY);
        self.samples.iter().map(loss).sum::<f64>() / self.samples.len() as f64 + penalty
    }
}

fn margin(s: &Sample, w: &BTreeMap<u64, f32>) -> f32 {
    s.label * s.features.iter().map(|(i, x)| x * w.get(i).unwrap_or(&0.0)).sum::<f32>()
}

impl Program for &Logistic {
    fn wants(&mut self, step: Step, _tables: &[TableSpec]) -> Wants {
        Wants::from([(W, Want::Rows(Arc::new(self.rows(step))))])
    }

    fn compute(&mut self, step: Step, pulled: &Pulled) -> Gradients {
        let rows = self.rows(step);
        let w: BTreeMap<u64, f32> = rows.iter().copied().zip(pulled[&W].iter().copied()).collect();
        let scale = 1.0 / step.n_slots as f32;
        let mut gradient: BTreeMap<u64, f32> = w.iter().map(|(i, w)| (*i, PENALTY * w * scale)).collect();
        let n = (BATCH / step.n_slots) as f32;
        for sample in self.batch(step) {
            let slope = -sample.label / (1.0 + margin(sample, &w).exp());
            for (i, x) in &sample.features {
                *gradient.get_mut(i).expect("it was pulled") += slope * x / n * scale;
            }
        }
        vec![(W, Delta::Rows(Arc::new(rows), Arc::new(gradient.into_values().collect())))]
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::from_env()?;
    let path = std::env::args().nth(1).ok_or("usage: logistic FILE [EPOCHS]")?;
    let epochs: usize = std::env::args().nth(2).map_or(Ok(100), |e| e.parse())?;
    let samples = read(&path)?;
    let clocks = (epochs * samples.len() / BATCH) as u64;
    let model = Logistic { samples, clocks };
    let w = TableSpec::Rows { width: 1, init: Init::Zero, rule: Rule::Adagrad { lr: 0.5, eps: 1e-8 } };
    let (first, sync) = (cluster.is_first(), cluster.sync());
    let run = cluster.run(&[w], clocks, &model)?;
    if first {
        let rows = model.rows(Step { slot: Slot(0), n_slots: 1, clock: clocks });
        let w = rows.into_iter().zip(run.pulled[&W].iter().copied()).collect();
        let idle = run.waited.as_secs_f64() / run.elapsed.as_secs_f64();
        println!(
            "{sync}: objective {:.6}, {} steps here, {:.0} % idle",
            model.objective(&w),
            run.steps,
            idle * 100.0
        );
    }
    Ok(())
}

fn read(path: &str) -> Result<Vec<Sample>, Box<dyn std::error::Error>> {
    let bytes = std::fs::read(path).map_err(|e| format!("{path}: {e}"))?;
    let mut text = String::new();
    match bytes.strip_prefix(&[0x1f, 0x8b]) {
        Some(_) => flate2::read::GzDecoder::new(&bytes[..]).read_to_string(&mut text)?,
        None => (&bytes[..]).read_to_string(&mut text)?,
    };
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
