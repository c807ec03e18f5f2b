//! A mixture of Gaussians with diagonal covariance by EM: workers compute responsibilities and add up
//! moments (the E step), the server's rule turns moments into parameters (the M step).
//!
//!     mixture FILE K [COLUMNS] [CLOCKS]
//!     thalweg launch --workers 4 --servers 2 -- target/release/examples/mixture iris.csv 3 4

mod shared;

use std::sync::Arc;

use thalweg_cluster::state::Wants;
use thalweg_cluster::table::{Delta, Init, Want};
use thalweg_cluster::{
    Cluster, Gradients, Program, Pulled, Registry, Rule, Step, TableId, TableSpec, UpdateRule,
};

const PARTS: TableId = TableId(0);
/// Keeps a component from shrinking to a point.
const FLOOR: f32 = 1e-3;

/// A row is a component: its weight n, its means, its variances. A push is n, Σ r·x, Σ r·x².
struct Moments;

impl UpdateRule for Moments {
    fn update(&self, _step: u64, _value: &[f32], sum: &[f32], _state: &mut [f32], out: &mut [f32]) {
        let d = (sum.len() - 1) / 2;
        let n = sum[0].max(1e-6);
        out[0] = n;
        for i in 0..d {
            let mean = sum[1 + i] / n;
            out[1 + i] = mean;
            out[1 + d + i] = (sum[1 + d + i] / n - mean * mean).max(FLOOR);
        }
    }
}

struct Mixture {
    points: Vec<Vec<f32>>,
    k: usize,
}

impl Mixture {
    /// log(weight · density) of each component at a point. At first the means are points.
    fn log_densities(&self, point: &[f32], rows: &[f32], clock: u64) -> Vec<f32> {
        let (n, d) = (self.points.len(), point.len());
        let component = |k: usize| {
            let row = &rows[k * (2 * d + 1)..][..2 * d + 1];
            let mean = if clock == 0 { &self.points[k * n / self.k] } else { &row[1..1 + d] };
            let mut log = if clock == 0 { 0.0 } else { (row[0] / n as f32).ln() };
            for (i, (x, m)) in point.iter().zip(mean).enumerate() {
                let variance = if clock == 0 { 1.0 } else { row[1 + d + i] };
                log -= 0.5 * ((x - m) * (x - m) / variance + (std::f32::consts::TAU * variance).ln());
            }
            log
        };
        (0..self.k).map(component).collect()
    }
}

fn log_sum_exp(x: &[f32]) -> f32 {
    let max = x.iter().fold(f32::NEG_INFINITY, |m, v| m.max(*v));
    max + x.iter().map(|v| (v - max).exp()).sum::<f32>().ln()
}

impl Program for &Mixture {
    fn wants(&mut self, _step: Step, _tables: &[TableSpec]) -> Wants {
        Wants::from([(PARTS, Want::Rows(Arc::new((0..self.k as u64).collect())))])
    }

    fn compute(&mut self, step: Step, pulled: &Pulled) -> Gradients {
        let d = self.points[0].len();
        let mut sums = vec![0.0; self.k * (2 * d + 1)]; // (k, 2d + 1)
        for point in self.points.iter().skip(step.slot.0 as usize).step_by(step.n_slots) {
            let logs = self.log_densities(point, &pulled[&PARTS], step.clock);
            let total = log_sum_exp(&logs);
            for (sum, log) in sums.chunks_exact_mut(2 * d + 1).zip(&logs) {
                let r = (log - total).exp();
                sum[0] += r;
                for (i, x) in point.iter().enumerate() {
                    sum[1 + i] += r * x;
                    sum[1 + d + i] += r * x * x;
                }
            }
        }
        vec![(PARTS, Delta::Rows(Arc::new((0..self.k as u64).collect()), Arc::new(sums)))]
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::with(Registry::default().rule("moments", Moments))?;
    let args: Vec<String> = std::env::args().collect();
    let [_, path, k, ..] = &args[..] else { return Err("usage: mixture FILE K [COLUMNS] [CLOCKS]".into()) };
    let columns: usize = args.get(3).map_or(Ok(usize::MAX), |n| n.parse())?;
    let clocks: u64 = args.get(4).map_or(Ok(100), |n| n.parse())?;
    let mut points = shared::numbers(path)?;
    points.iter_mut().for_each(|p| p.truncate(columns));
    let model = Mixture { k: k.parse()?, points };
    let width = 2 * model.points[0].len() + 1;
    let rule = Rule::Named("moments".into());
    let (first, sync) = (cluster.is_first(), cluster.sync());
    let run = cluster.run(&[TableSpec::Rows { width, init: Init::Zero, rule }], clocks, &model)?;
    if first {
        let likelihood =
            |p: &Vec<f32>| f64::from(log_sum_exp(&model.log_densities(p, &run.pulled[&PARTS], clocks)));
        let mean = model.points.iter().map(likelihood).sum::<f64>() / model.points.len() as f64;
        println!("{sync}: mean log-likelihood {mean:.4}");
    }
    Ok(())
}
