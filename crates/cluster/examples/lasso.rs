//! Lasso by parallel coordinate descent: each slot takes one coordinate per clock, all slots together as
//! many as there are, damped so that correlated coordinates do not overshoot.
//! Minimises ‖y − Xβ‖² / 2n + λ‖β‖₁ on standardised columns.
//!
//!     lasso FEATURES TARGET LAMBDA [CLOCKS]
//!     thalweg launch --workers 2 --servers 2 -- target/release/examples/lasso x.csv y.csv 1.0

mod shared;

use std::sync::Arc;

use thalweg_cluster::table::Delta;
use thalweg_cluster::{Cluster, Gradients, Program, Pulled, Rule, Step, TableId, TableSpec};

const BETA: TableId = TableId(0);

struct Lasso {
    columns: Vec<Vec<f32>>, // standardised: mean 0, mean square 1
    y: Vec<f32>,            // centred
    lambda: f32,
}

impl Lasso {
    fn residual(&self, beta: &[f32]) -> Vec<f32> {
        let mut residual = self.y.clone();
        for (column, b) in self.columns.iter().zip(beta) {
            residual.iter_mut().zip(column).for_each(|(r, x)| *r -= b * x);
        }
        residual
    }

    fn objective(&self, beta: &[f32]) -> f64 {
        let square = self.residual(beta).iter().map(|r| f64::from(r * r)).sum::<f64>();
        square / (2.0 * self.y.len() as f64)
            + f64::from(self.lambda * beta.iter().map(|b| b.abs()).sum::<f32>())
    }
}

impl Program for &Lasso {
    fn compute(&mut self, step: Step, pulled: &Pulled) -> Gradients {
        let beta = &pulled[&BETA];
        let j = (step.clock as usize * step.n_slots + step.slot.0 as usize) % self.columns.len();
        let residual = self.residual(beta);
        let slope =
            self.columns[j].iter().zip(&residual).map(|(x, r)| x * r).sum::<f32>() / self.y.len() as f32;
        let target = beta[j] + slope;
        let best = target.signum() * (target.abs() - self.lambda).max(0.0);
        let mut change = vec![0.0; beta.len()];
        change[j] = (best - beta[j]) / step.n_slots as f32;
        vec![(BETA, Delta::Dense(Arc::new(change)))]
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::from_env()?;
    let args: Vec<String> = std::env::args().collect();
    let [_, features, target, lambda, ..] = &args[..] else {
        return Err("usage: lasso FEATURES TARGET LAMBDA [CLOCKS]".into());
    };
    let clocks: u64 = args.get(4).map_or(Ok(4000), |n| n.parse())?;
    let (x, y) = (shared::numbers(features)?, shared::numbers(target)?);
    let n = x.len() as f32;
    let column = |j: usize| {
        let mean = x.iter().map(|row| row[j]).sum::<f32>() / n;
        let centred: Vec<f32> = x.iter().map(|row| row[j] - mean).collect();
        let size = (centred.iter().map(|v| v * v).sum::<f32>() / n).sqrt().max(1e-12);
        centred.into_iter().map(|v| v / size).collect()
    };
    let mean = y.iter().map(|row| row[0]).sum::<f32>() / n;
    let model = Lasso {
        columns: (0..x[0].len()).map(column).collect(),
        y: y.iter().map(|row| row[0] - mean).collect(),
        lambda: lambda.parse()?,
    };
    let beta = TableSpec::Dense { values: Arc::new(vec![0.0; model.columns.len()]), rule: Rule::Add };
    let (first, sync) = (cluster.is_first(), cluster.sync());
    let run = cluster.run(&[beta], clocks, &model)?;
    if first {
        let beta = &run.pulled[&BETA];
        let kept = beta.iter().filter(|b| b.abs() > 1e-4).count();
        println!("{sync}: objective {:.5}, {kept} of {} coordinates", model.objective(beta), beta.len());
    }
    Ok(())
}
