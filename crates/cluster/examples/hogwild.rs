//! Hogwild: many threads of one process on the same weights, without locks (Niu et al. 2011), for logistic regression on
//! sparse rows.
//!
//!     hogwild [FILE [THREADS [EPOCHS]]]      (lines `label feature:value ..` as of a9a; made-up ones without a file)
//!
//! A step reads and changes the few weights of one sample. Two threads seldom meet at one weight, and where they do, none
//! of the two additions is lost. Times go to standard error: one thread with plain numbers, which is what any program
//! would do, one with atomic ones, and so many. Prints:
//! ```text
//! 2 threads come as far as one: true
//! ```

use std::time::Instant;

use thalweg_cluster::Hogwild;
use thalweg_data::{Dataset, Sparse, libsvm};

const RATE: f32 = 0.01;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let options = libsvm::Options::default();
    let samples = match args.next() {
        Some(path) => libsvm::read(path, &options)?.data,
        None => libsvm::parse("made up", made_up().as_bytes(), &options)?.data,
    };
    let threads: usize = args.next().map_or(Ok(2), |n| n.parse())?;
    let epochs: u64 = args.next().map_or(Ok(100), |n| n.parse())?;
    let steps = epochs * samples.len() as u64;
    let timed = |name: &str, train: &dyn Fn() -> Vec<f32>| {
        let begin = Instant::now();
        let w = train();
        let (seconds, loss) = (begin.elapsed().as_secs_f64(), loss(&samples, &w));
        eprintln!("{name}: {:.0} steps/ms, loss {loss:.5}", steps as f64 / seconds / 1e3);
        loss
    };
    let shared = |threads| {
        let weights = Hogwild::new(&vec![0.0; samples.n_features()]);
        weights.run(threads, steps, |w, step| {
            let row = row_of(step, samples.len());
            let (features, values) = samples.row(row);
            let dot = features.iter().zip(values).map(|(i, x)| w.get(*i as usize) * x).sum();
            let change = RATE * pull(samples.labels()[row], dot);
            features.iter().zip(values).for_each(|(i, x)| w.add(*i as usize, change * x));
        });
        weights.values()
    };
    let plain = timed("plain numbers", &|| {
        let mut w = vec![0.0f32; samples.n_features()];
        for step in 0..steps {
            let row = row_of(step, samples.len());
            let (features, values) = samples.row(row);
            let dot = features.iter().zip(values).map(|(i, x)| w[*i as usize] * x).sum();
            let change = RATE * pull(samples.labels()[row], dot);
            features.iter().zip(values).for_each(|(i, x)| w[*i as usize] += change * x);
        }
        w
    });
    timed("1 thread", &|| shared(1));
    let many = timed(&format!("{threads} threads"), &|| shared(threads));
    println!("{threads} threads come as far as one: {}", many < plain * 1.05);
    Ok(())
}

/// Scattered, every row once per epoch (1,000,003 is a prime), and in each epoch for another thread.
fn row_of(step: u64, rows: usize) -> usize {
    let epoch = step / rows as u64;
    (step.wrapping_mul(1_000_003).wrapping_add(epoch) % rows as u64) as usize
}

/// How far, and which way, a sample draws x·w.
fn pull(label: f32, dot: f32) -> f32 {
    label / (1.0 + (label * dot).exp())
}

fn loss(samples: &Sparse, w: &[f32]) -> f64 {
    let margin = |row: usize| {
        let (features, values) = samples.row(row);
        samples.labels()[row] * features.iter().zip(values).map(|(i, x)| w[*i as usize] * x).sum::<f32>()
    };
    let losses = (0..samples.len()).map(|row| f64::from(-margin(row)).exp().ln_1p());
    losses.sum::<f64>() / samples.len() as f64
}

/// Each sample has five of 200 features; the even ones speak for, the odd ones against, and one in eight samples does not
/// listen.
fn made_up() -> String {
    let mut text = String::new();
    for i in 0..2000u64 {
        let mut features: Vec<u64> = (0..5).map(|k| (i * 7919 + k * 104_729 + i * k * 31) % 200).collect();
        features.sort_unstable();
        features.dedup();
        let votes: i64 = features.iter().map(|f| if f % 2 == 0 { 1 } else { -1 }).sum();
        text += if (votes > 0) != (i * i % 64 < 8) { "+1" } else { "-1" };
        features.iter().for_each(|f| text += &format!(" {}:1", f + 1));
        text += "\n";
    }
    text
}
