//! How long a step takes when nothing is computed: the cost of the cluster itself.
//!
//!     throughput VALUES CLOCKS          dense values pushed and pulled per step (1 is the null step)
//!     throughput rows ROWS CLOCKS       32 sparse rows of 16 values out of so many
//!
//! Prints `median p99` of one push and pull in milliseconds, on the first worker.

use std::sync::Arc;
use std::time::Instant;

use thalweg_cluster::Values;
use thalweg_cluster::state::Wants;
use thalweg_cluster::table::{Delta, Init, Want};
use thalweg_cluster::{Cluster, Gradients, Program, Pulled, Rule, Step, TableId, TableSpec};

const T: TableId = TableId(0);

struct Bench {
    rows: Option<u64>,
    gradient: Values,
    last: Option<Instant>,
    times: Vec<f64>,
}

impl Bench {
    fn keys(&self, n: u64, step: Step) -> Vec<u64> {
        let mut keys: Vec<u64> = (0..32).map(|i| (step.clock * 7919 + i * (n / 32 + 1)) % n).collect();
        keys.sort_unstable();
        keys.dedup();
        keys
    }
}

impl Program for &mut Bench {
    fn wants(&mut self, step: Step, _tables: &[TableSpec]) -> Wants {
        let want = self.rows.map_or(Want::Dense, |n| Want::Rows(Arc::new(self.keys(n, step))));
        Wants::from([(T, want)])
    }

    fn compute(&mut self, step: Step, pulled: &Pulled) -> Gradients {
        let now = Instant::now();
        if let Some(last) = self.last.replace(now) {
            self.times.push((now - last).as_secs_f64() * 1e3);
        }
        let delta = match self.rows {
            Some(n) => Delta::Rows(Arc::new(self.keys(n, step)), pulled[&T].clone()),
            None => Delta::Dense(self.gradient.clone()),
        };
        vec![(T, delta)]
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::from_env()?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (rows, numbers) = match args.split_first() {
        Some((word, rest)) if word == "rows" => (true, rest),
        _ => (false, &args[..]),
    };
    let [n, clocks] = numbers else { return Err("usage: throughput [rows] N CLOCKS".into()) };
    let (n, clocks): (usize, u64) = (n.parse()?, clocks.parse()?);
    let table = if rows {
        TableSpec::Rows { width: 16, init: Init::Zero, rule: Rule::Add }
    } else {
        TableSpec::Dense { values: vec![0.0; n].into(), rule: Rule::Add }
    };
    let gradient = vec![1.0; if rows { 0 } else { n }].into();
    let mut bench = Bench { rows: rows.then_some(n as u64), gradient, last: None, times: Vec::new() };
    let first = cluster.is_first();
    cluster.run(&[table], clocks, &mut bench)?;
    if first {
        bench.times.sort_by(f64::total_cmp);
        let at = |share: f64| bench.times[(bench.times.len() as f64 * share) as usize];
        println!("median {:.4} ms, p99 {:.4} ms, {} steps", at(0.5), at(0.99), bench.times.len());
    }
    Ok(())
}
