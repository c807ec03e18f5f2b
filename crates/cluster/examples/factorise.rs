//! Matrix factorisation of ratings: rating ≈ mean + user · film, both sparse tables of rows. A step pulls
//! the rows of its ratings only.
//!
//!     factorise RATINGS [EPOCHS]              (lines `user::film::rating...`)
//!     thalweg launch --workers 4 --servers 2 --sync ssp:3 -- target/release/examples/factorise ratings.dat

mod shared;

use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_cluster::state::Wants;
use thalweg_cluster::table::{Delta, Init, Want};
use thalweg_cluster::{Cluster, Gradients, Program, Pulled, Rule, Slot, Step, TableId, TableSpec};

const TABLES: [TableId; 2] = [TableId(0), TableId(1)]; // users, films
const WIDTH: usize = 8; // the last one of a film's row is its bias
const BATCH: usize = 4000;
const PENALTY: f32 = 0.05;

struct Ratings {
    train: Vec<([u64; 2], f32)>,
    test: Vec<([u64; 2], f32)>,
    mean: f32,
    clocks: u64,
}

type Rows = BTreeMap<u64, Vec<f32>>;

impl Ratings {
    fn batch(&self, step: Step) -> impl Iterator<Item = &([u64; 2], f32)> {
        let (n, size) = (self.train.len(), BATCH / step.n_slots);
        let start = (step.clock as usize * step.n_slots + step.slot.0 as usize) * size;
        (start..start + size).map(move |p| &self.train[(p % n * 7919 + p / n * 31) % n])
    }

    /// The users or films of a step's ratings; after the last step, those of the test.
    fn rows(&self, step: Step, side: usize) -> Vec<u64> {
        let ids =
            |all: &mut dyn Iterator<Item = &([u64; 2], f32)>| all.map(|r| r.0[side]).collect::<Vec<_>>();
        let last = step.clock >= self.clocks;
        let mut rows = if last { ids(&mut self.test.iter()) } else { ids(&mut self.batch(step)) };
        rows.sort_unstable();
        rows.dedup();
        rows
    }

    fn pulled(&self, step: Step, pulled: &Pulled) -> [Rows; 2] {
        [0, 1].map(|side| {
            let values = pulled[&TABLES[side]].chunks_exact(WIDTH).map(<[f32]>::to_vec);
            self.rows(step, side).into_iter().zip(values).collect()
        })
    }

    fn error(&self, [user, film]: [&[f32]; 2], rating: f32) -> f32 {
        let dot: f32 = user.iter().zip(film).take(WIDTH - 1).map(|(u, f)| u * f).sum();
        self.mean + user[WIDTH - 1] + film[WIDTH - 1] + dot - rating
    }
}

impl Program for &Ratings {
    fn wants(&mut self, step: Step, _tables: &[TableSpec]) -> Wants {
        [0, 1].into_iter().map(|s| (TABLES[s], Want::Rows(Arc::new(self.rows(step, s))))).collect()
    }

    fn compute(&mut self, step: Step, pulled: &Pulled) -> Gradients {
        let values = self.pulled(step, pulled);
        let mut gradients =
            values.clone().map(|rows| rows.into_keys().map(|k| (k, vec![0.0; WIDTH])).collect::<Rows>());
        for (ids, rating) in self.batch(step) {
            let rows = [0, 1].map(|side| &values[side][&ids[side]][..]);
            let error = self.error(rows, *rating);
            for side in [0, 1] {
                let gradient = gradients[side].get_mut(&ids[side]).expect("it was pulled");
                for i in 0..WIDTH {
                    let other = if i == WIDTH - 1 { 1.0 } else { rows[1 - side][i] };
                    gradient[i] += error * other + PENALTY * rows[side][i];
                }
            }
        }
        let delta = |rows: Rows| {
            let (keys, values): (Vec<u64>, Vec<Vec<f32>>) = rows.into_iter().unzip();
            Delta::Rows(Arc::new(keys), Arc::new(values.concat()))
        };
        TABLES.into_iter().zip(gradients.map(delta)).collect()
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let cluster = Cluster::from_env()?;
    let path = std::env::args().nth(1).ok_or("usage: factorise RATINGS [EPOCHS]")?;
    let epochs: usize = std::env::args().nth(2).map_or(Ok(20), |e| e.parse())?;
    let all: Vec<([u64; 2], f32)> = shared::numbers(&path)?
        .into_iter()
        .filter(|r| r.len() >= 3)
        .map(|r| ([r[0] as u64, r[1] as u64], r[2]))
        .collect();
    let split = |test: bool| {
        all.iter().enumerate().filter(move |(i, _)| (i % 10 == 0) == test).map(|(_, r)| *r).collect()
    };
    let (train, test): (Vec<_>, Vec<_>) = (split(false), split(true));
    let mean = train.iter().map(|r| r.1).sum::<f32>() / train.len() as f32;
    let clocks = (epochs * train.len() / BATCH) as u64;
    let model = Ratings { train, test, mean, clocks };
    let rule = Rule::Adagrad { lr: 0.1, eps: 1e-6 };
    let rows =
        |seed| TableSpec::Rows { width: WIDTH, init: Init::Uniform { seed, scale: 0.1 }, rule: rule.clone() };
    let (first, sync) = (cluster.is_first(), cluster.sync());
    let run = cluster.run(&[rows(1), rows(2)], clocks, &model)?;
    if first {
        let [users, films] = model.pulled(Step { slot: Slot(0), n_slots: 1, clock: clocks }, &run.pulled);
        let square =
            |r: &([u64; 2], f32)| f64::from(model.error([&users[&r.0[0]], &films[&r.0[1]]], r.1).powi(2));
        let rmse = |errors: f64| (errors / model.test.len() as f64).sqrt();
        let constant = model.test.iter().map(|r| f64::from((r.1 - mean) * (r.1 - mean))).sum();
        let model_error = model.test.iter().map(square).sum();
        println!("{sync}: test RMSE {:.4} (the mean alone: {:.4})", rmse(model_error), rmse(constant));
    }
    Ok(())
}
