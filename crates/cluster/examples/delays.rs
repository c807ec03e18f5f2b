//! How much time workers lose by waiting for stragglers, and how long a target takes, under injected delays.
//!
//!     delays MODEL CLOCKS RATE SEED       (exponential, fixed or pareto)
//!     thalweg launch --workers 8 --servers 1 --sync ssp:4 -- target/release/examples/delays pareto 400 0.5 1
//!
//! Each step sleeps for what its computation would take: 4 ms and an exponential time of 2 ms in the mean; 4 ms, and 12 ms
//! more for one step in ten; or a Pareto time from 3 ms on with exponent 1.5, at most 90 ms. The problem is least squares with
//! noisy gradients, and every slot's samples are of another kind: what is best for them lies elsewhere, only together
//! they want zero. So while a slot is late, the others pull towards what is best for them. Prints `idle SHARE target
//! SECONDS clocks CLOCKS` of the first worker, from its first step on: the share of time between its steps, and after
//! how long and at which clock it saw the loss below 1 % of its beginning, or `-`.

use std::time::{Duration, Instant};

use thalweg_cluster::table::Delta;
use thalweg_cluster::{Cluster, Gradients, Program, Pulled, Rule, Step, TableId, TableSpec};

const W: TableId = TableId(0);
const N: usize = 64;
/// The curvatures run from 1 down to this.
const FLATTEST: f32 = 0.01;
/// How far what is best for a slot lies from what is best for all, in every direction (standard deviation).
const APART: f32 = 1.5;

struct Delays {
    model: String,
    seed: u64,
    best: Vec<Vec<f32>>, // (slots, N): what each slot wants
    began: Option<Instant>,
    last: Option<Instant>, // when the last step ended
    busy: Duration,
    target: Option<(f64, u64)>, // seconds and clock
}

/// A number in (0, 1) that depends on its arguments alone (SplitMix64).
fn draw(seed: u64, clock: u64, slot: u32, i: u64) -> f64 {
    let mut x = (seed << 32 | clock)
        .wrapping_mul(1009)
        .wrapping_add(u64::from(slot))
        .wrapping_mul(4093)
        .wrapping_add(i);
    for multiplier in [0xbf58_476d_1ce4_e5b9_u64, 0x94d0_49bb_1331_11eb] {
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 29)).wrapping_mul(multiplier);
    }
    ((x >> 12) as f64 + 0.5) / (1u64 << 52) as f64
}

/// Uniform around zero, less the mean over the slots.
fn best(seed: u64, n_slots: usize) -> Vec<Vec<f32>> {
    let own = |slot: usize, i: usize| {
        12f32.sqrt() * (draw(seed, u32::MAX.into(), slot as u32, i as u64) - 0.5) as f32
    };
    let mean = |i: usize| (0..n_slots).map(|s| own(s, i)).sum::<f32>() / n_slots as f32;
    (0..n_slots).map(|s| (0..N).map(|i| APART * (own(s, i) - mean(i))).collect()).collect()
}

impl Delays {
    fn milliseconds(&self, step: Step) -> f64 {
        let u = draw(self.seed, step.clock, step.slot.0, 0);
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
            self.target = Some((began.elapsed().as_secs_f64(), step.clock));
        }
        std::thread::sleep(Duration::from_secs_f64(self.milliseconds(step) / 1e3));
        self.busy += begin.elapsed();
        self.last = Some(Instant::now());
        let best = &self.best[step.slot.0 as usize];
        let gradient = |(i, w): (usize, &f32)| {
            let noise = 0.1 * (draw(self.seed, step.clock, step.slot.0, i as u64 + 1) - 0.5) as f32;
            curvature(i) * (w - best[i] + noise) / step.n_slots as f32
        };
        vec![(W, Delta::Dense(w.iter().enumerate().map(gradient).collect()))]
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::from_env()?;
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, clocks, rate, seed] = &args[..] else {
        return Err("usage: delays MODEL CLOCKS RATE SEED".into());
    };
    if !["exponential", "fixed", "pareto"].contains(&model.as_str()) {
        return Err(format!("{model:?} is no model; use exponential, fixed or pareto").into());
    }
    let (model, seed, first) = (model.clone(), u64::from(seed.parse::<u32>()?), cluster.is_first());
    let best = best(seed, cluster.n_slots());
    let mut delays =
        Delays { model, seed, best, began: None, last: None, busy: Duration::ZERO, target: None };
    let w = TableSpec::Dense { values: vec![1.0; N].into(), rule: Rule::Sgd { lr: rate.parse()? } };
    cluster.run(&[w], clocks.parse()?, &mut delays)?;
    if let (true, Some(began), Some(last)) = (first, delays.began, delays.last) {
        let idle = 1.0 - delays.busy.as_secs_f64() / (last - began).as_secs_f64();
        let (target, clocks) = delays
            .target
            .map_or(("-".to_owned(), "-".to_owned()), |(t, c)| (format!("{t:.3}"), c.to_string()));
        println!("idle {idle:.4} target {target} clocks {clocks}");
    }
    Ok(())
}
