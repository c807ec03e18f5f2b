//! How much time workers lose by waiting for stragglers, and how long a target takes, under injected delays.
//!
//!     delays MODEL CLOCKS RATE       (exponential, fixed or pareto)
//!     thalweg launch --workers 4 --servers 1 --sync ssp:4 -- target/release/examples/delays pareto 400 1.0
//!
//! Each step sleeps for what its computation would take: 4 ms and an exponential time of 2 ms in the mean; 4 ms, and 12 ms
//! more for one step in ten; or a Pareto time from 3 ms on with exponent 1.5. The problem is least squares with noisy
//! gradients. Prints `idle SHARE target SECONDS` of the first worker, from its first step on: the share of time between
//! its steps, and after how long it saw the loss below 1 % of its beginning, or `-`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use thalweg_cluster::table::Delta;
use thalweg_cluster::{Cluster, Gradients, Program, Pulled, Rule, Step, TableId, TableSpec};

const W: TableId = TableId(0);
const N: usize = 64;
/// The curvatures run from 1 down to this.
const FLATTEST: f32 = 0.01;

struct Delays {
    model: String,
    began: Option<Instant>,
    last: Option<Instant>, // when the last step ended
    busy: Duration,
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
        let begin = Instant::now();
        let began = *self.began.get_or_insert(begin);
        let w = &pulled[&W];
        if self.target.is_none() && loss(w) < 0.01 * loss(&[1.0; N]) {
            self.target = Some(began.elapsed().as_secs_f64());
        }
        std::thread::sleep(Duration::from_secs_f64(self.milliseconds(step) / 1e3));
        self.busy += begin.elapsed();
        self.last = Some(Instant::now());
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
    let [model, clocks, rate] = &args[..] else { return Err("usage: delays MODEL CLOCKS RATE".into()) };
    if !["exponential", "fixed", "pareto"].contains(&model.as_str()) {
        return Err(format!("{model:?} is no model; use exponential, fixed or pareto").into());
    }
    let first = cluster.is_first();
    let mut delays =
        Delays { model: model.clone(), began: None, last: None, busy: Duration::ZERO, target: None };
    // Rounds are stable up to a rate of 2; the nearer, the higher the price of staleness.
    let rate = Rule::Sgd { lr: rate.parse()? };
    let w = TableSpec::Dense { values: Arc::new(vec![1.0; N]), rule: rate };
    cluster.run(&[w], clocks.parse()?, &mut delays)?;
    if let (true, Some(began), Some(last)) = (first, delays.began, delays.last) {
        let idle = 1.0 - delays.busy.as_secs_f64() / (last - began).as_secs_f64();
        let target = delays.target.map_or("-".to_owned(), |t| format!("{t:.3}"));
        println!("idle {idle:.4} target {target}");
    }
    Ok(())
}
