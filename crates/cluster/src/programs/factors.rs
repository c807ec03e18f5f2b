//! Matrix factorisation of ratings: rating ≈ mean + biases + user · item, both sparse tables of rows. A step pulls and
//! pushes the rows of its ratings only.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use thalweg_data::permutation;
use thalweg_data::ratings::Ratings;

use super::{Learned, Model};
use crate::cluster::{Gradients, Pulled, Step};
use crate::error::ClusterError;
use crate::ids::TableId;
use crate::layout::TableSpec;
use crate::rule::Rule;
use crate::state::Wants;
use crate::table::{Delta, Init, Want};

const TABLES: [TableId; 2] = [TableId(0), TableId(1)]; // users, items
/// One of so many ratings is kept for the test.
const TEST: usize = 10;

type Rating = ([u64; 2], f32);

/// Users and items as points whose products are the ratings.
pub struct Factors {
    train: Vec<Rating>,
    test: Vec<Rating>,
    n: [usize; 2],
    mean: f32,
    how: FactorsOptions,
    order: RefCell<(u64, Vec<u32>)>, // of an epoch: the one that was last asked for
}

/// How ratings are factorised.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FactorsOptions {
    /// Numbers per user and item; one more is the bias.
    pub factors: usize,
    /// Ratings of a step, all slots together.
    pub batch: usize,
    /// The rate of Adagrad.
    pub lr: f64,
    /// On the squares of all numbers.
    pub penalty: f64,
    /// Where random numbers begin.
    pub seed: u64,
}

impl Factors {
    /// Refuses fewer ratings than a test needs.
    pub fn new(ratings: &Ratings, how: FactorsOptions) -> Result<Self, ClusterError> {
        if ratings.len() < 2 * TEST {
            let problem = format!("{} ratings are too few; use {} at least", ratings.len(), 2 * TEST);
            return Err(ClusterError::Samples { problem });
        }
        let ids = ratings.users.iter().zip(&ratings.items).map(|(u, i)| [u64::from(*u), u64::from(*i)]);
        let all = ids.zip(ratings.ratings.iter().copied()).enumerate();
        let (test, train): (Vec<_>, Vec<_>) = all.partition(|(i, _)| i % TEST == 0);
        let [train, test] =
            [train, test].map(|part| part.into_iter().map(|(_, r)| r).collect::<Vec<Rating>>());
        let mean = train.iter().map(|r| r.1).sum::<f32>() / train.len() as f32;
        let n = [ratings.user_names.len(), ratings.item_names.len()];
        let order = RefCell::new((0, permutation(how.seed, 0, train.len())));
        Ok(Self { train, test, n, mean, how, order })
    }

    /// The slot's ratings of a step and the number of all: of an epoch's order the next ones, every rating once.
    fn batch(&self, step: Step) -> (Vec<Rating>, usize) {
        let (epoch, at) = (step.clock / self.steps_per_epoch(), step.clock % self.steps_per_epoch());
        let mut order = self.order.borrow_mut();
        if order.0 != epoch {
            *order = (epoch, permutation(self.how.seed, epoch, self.train.len()));
        }
        let rest = &order.1[at as usize * self.how.batch..];
        let all = &rest[..rest.len().min(self.how.batch)];
        let cut = |slot: usize| all.len() * slot / step.n_slots;
        let slot = step.slot.0 as usize;
        (all[cut(slot)..cut(slot + 1)].iter().map(|i| self.train[*i as usize]).collect(), all.len())
    }

    fn error(&self, [user, item]: [&[f32]; 2], rating: f32) -> f32 {
        let bias = self.how.factors;
        let dot: f32 = user[..bias].iter().zip(item).map(|(u, i)| u * i).sum();
        self.mean + user[bias] + item[bias] + dot - rating
    }
}

fn rows(batch: &[Rating], side: usize) -> Vec<u64> {
    let mut rows: Vec<u64> = batch.iter().map(|r| r.0[side]).collect();
    rows.sort_unstable();
    rows.dedup();
    rows
}

impl Model for Factors {
    fn learned(&self) -> Vec<Learned> {
        let table = |name, side: usize| {
            let init = Init::Uniform { seed: self.how.seed.rotate_left(1) ^ side as u64, scale: 0.1 };
            let rule = Rule::Adagrad { lr: self.how.lr as f32, eps: 1e-6 };
            let spec = TableSpec::Rows { width: self.how.factors + 1, init, rule };
            Learned::Table { name, rows: self.n[side], spec }
        };
        vec![table("users", 0), table("items", 1)]
    }

    fn steps_per_epoch(&self) -> u64 {
        self.train.len().div_ceil(self.how.batch) as u64
    }

    fn wants(&self, step: Step) -> Option<Wants> {
        let (batch, _) = self.batch(step);
        Some([0, 1].into_iter().map(|s| (TABLES[s], Want::Rows(Arc::new(rows(&batch, s))))).collect())
    }

    fn step(&self, step: Step, values: &Pulled) -> (Gradients, f64) {
        let ((batch, all), width) = (self.batch(step), self.how.factors + 1);
        let keys = [0, 1].map(|side| rows(&batch, side));
        let mut gradients = [0, 1].map(|side| vec![0.0; keys[side].len() * width]);
        let mut loss = 0.0;
        for (ids, rating) in &batch {
            let at = [0, 1].map(|side| width * keys[side].binary_search(&ids[side]).expect("it was pulled"));
            let rows = [0, 1].map(|side| &values[&TABLES[side]][at[side]..][..width]);
            let error = self.error(rows, *rating);
            loss += f64::from(error * error) / all as f64;
            for side in [0, 1] {
                for (i, gradient) in gradients[side][at[side]..][..width].iter_mut().enumerate() {
                    let other = if i == width - 1 { 1.0 } else { rows[1 - side][i] };
                    *gradient += error * other + self.how.penalty as f32 * rows[side][i];
                }
            }
        }
        let delta = |(keys, values): (_, Vec<f32>)| Delta::Rows(Arc::new(keys), values.into());
        (TABLES.into_iter().zip(keys.into_iter().zip(gradients).map(delta)).collect(), loss)
    }

    fn measure(&self, values: &Pulled) -> BTreeMap<String, f64> {
        let width = self.how.factors + 1;
        let row = |side: usize, id: u64| &values[&TABLES[side]][id as usize * width..][..width];
        let error = |(ids, rating): &Rating| self.error([row(0, ids[0]), row(1, ids[1])], *rating);
        let rmse = |errors: &mut dyn Iterator<Item = f32>| {
            (errors.map(|e| f64::from(e * e)).sum::<f64>() / self.test.len() as f64).sqrt()
        };
        let model = rmse(&mut self.test.iter().map(error));
        let constant = rmse(&mut self.test.iter().map(|r| self.mean - r.1));
        BTreeMap::from([("rmse".to_owned(), model), ("rmse_of_mean".to_owned(), constant)])
    }
}
