//! How much time workers lose by waiting for stragglers, and how long a target takes, under injected delays.
//!
//!     delays MODEL CLOCKS       (exponential, fixed or pareto)
//!     thalweg launch --workers 4 --servers 1 --sync ssp:4 -- target/release/examples/delays pareto 400
//!
//! Each step sleeps for what its computation would take: 4 ms and an exponential time of 2 ms in the mean; 4 ms, and 12 ms
//! more for one step in ten; or a Pareto time from 3 ms on with exponent 1.5. The problem is least squares with noisy
//! gradients. Prints `idle SHARE target SECONDS`; the seconds are those after which the loss first fell below 1 % of its
//! beginning, as the first worker saw it, or `-`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_cluster::table::Delta;
use thalweg_cluster::{Cluster, Gradients, Program, Pulled, Rule, Step, TableId, TableSpec};

const W: TableId = TableId(0);
const N: usize = 64;
/// The curvatures run from 1 down to this.
const FLATTEST: f32 = 0.02;

struct Delays {
    model: String,
    began: Instant,
    target: Option<f64>,
}

/// A number in (0, 1) that depends on its arguments alone (SplitMix64).
fn draw(step: Step, i: u64) -> f64 {
    let mut x = (step.clock * 1009 + u64::from(step.slot.0)) * 4093 + i;
    for multiplier in [0xbf58_476d_1ce4_e5b9_u64, 0x94d0_49bb_1331_11eb] {
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 29)).wrapping_mul(multiplier);
    }
    ((x >> 12) as f64 + 0.5) / (1u64 << 52) as f64
}

impl Delays {
    fn milliseconds(&self, step: Step) -> f64 {
        let u = draw(step, 0);
        match self.model.as_str() {
            "exponential" => 4.0 - 2.0 * u.ln(),
            "fixed" => 4.0 + if u < 0.1 { 12.0 } else { 0.0 },
            _ => 3.0 * u.powf(-1.0 / 1.5).min(30.0),
        }
    }
}

fn curvature(i: usize) -> f32 {
    FLATTEST.powf(i as f32 / (N - 1) as f32)
}

fn loss(w: &[f32]) -> f32 {
    w.iter().enumerate().map(|(i, w)| curvature(i) * w * w).sum()
}

impl Program for &mut Delays {
    fn compute(&mut self, step: Step, pulled: &Pulled) -> Gradients {
        std::thread::sleep(Duration::from_secs_f64(self.milliseconds(step) / 1e3));
        let w = &pulled[&W];
        if self.target.is_none() && loss(w) < 0.01 * loss(&[1.0; N]) {
            self.target = Some(self.began.elapsed().as_secs_f64());
        }
        let gradient = |(i, w): (usize, &f32)| {
            let noise = 0.1 * (draw(step, i as u64 + 1) - 0.5) as f32;
            curvature(i) * (w + noise) / step.n_slots as f32
        };
        vec![(W, Delta::Dense(Arc::new(w.iter().enumerate().map(gradient).collect())))]
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::from_env()?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, clocks] = &args[..] else { return Err("usage: delays MODEL CLOCKS".into()) };
    if !["exponential", "fixed", "pareto"].contains(&model.as_str()) {
        return Err(format!("{model:?} is no model; use exponential, fixed or pareto").into());
    }
    let first = cluster.is_first();
    let mut delays = Delays { model: model.clone(), began: Instant::now(), target: None };
    // Near the largest rate at which rounds are stable (2): so staleness has its price.
    let rate = Rule::Sgd { lr: 0.3 };
    let w = TableSpec::Dense { values: Arc::new(vec![1.0; N]), rule: rate };
    let run = cluster.run(&[w], clocks.parse()?, &mut delays)?;
    if first {
        let idle = run.waited.as_secs_f64() / run.elapsed.as_secs_f64();
        let target = delays.target.map_or("-".to_owned(), |t| format!("{t:.3}"));
        println!("idle {idle:.4} target {target}");
    }
    Ok(())
}
