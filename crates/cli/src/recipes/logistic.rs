//! Logistic regression with an L2 penalty: is a tumour malignant?

use anyhow::Result;
use thalweg::data::{Examples, breast_cancer};
use thalweg::schedule::Constant;
use thalweg::{Sgd, models};

use super::classify::{Split, classify};
use super::{Defaults, Length, Recipe};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "logistic",
    alias: None,
    about: "logistic regression with L2 on tumours (breast cancer)",
    defaults: Defaults { length: Length::Epochs(50), batch: 32, lr: 0.05 },
    shows: false,
    run,
};

fn run(job: &Job) -> Result<()> {
    // Four fifths to learn from; each measure has mean 0 and deviation 1 there.
    let (train, test) = breast_cancer()?.data.split(0.8, 0);
    let (mean, std) = (train.x.mean_keepdim(0), train.x.std_keepdim(0, 0));
    let scaled = |half: &Examples| Examples::new((&half.x - &mean) / &std, half.y.clone());
    let data = Split { train: scaled(&train)?, test: scaled(&test)? }.limited(job);
    let net = models::mlp(&[30, 2], &mut job.rng());
    let optimizer = Sgd::new(job.settings.lr).weight_decay(1e-3);
    classify(job, net, optimizer, Constant, data.train, data.test)
}
