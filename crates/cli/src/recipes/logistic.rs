//! Logistic regression with an L2 penalty: is a tumour malignant?

use anyhow::Result;
use thalweg::schedule::Constant;
use thalweg::{Sgd, models};

use super::classify::{classify, tumours};
use super::{Defaults, Length, Recipe};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "logistic",
    alias: None,
    about: "logistic regression with L2 on tumours (breast cancer)",
    defaults: Defaults::net(Length::Epochs(50), 32, 0.05),
    shows: false,
    run,
};

fn run(job: &Job) -> Result<()> {
    let data = tumours(job)?;
    let net = models::mlp(&[30, 2], &mut job.rng());
    let optimizer = Sgd::new(job.lr()).weight_decay(1e-3);
    classify(job, net, optimizer, Constant, data.train, data.test)
}
