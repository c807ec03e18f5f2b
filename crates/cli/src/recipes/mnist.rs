//! LeNet on handwritten digits.

use anyhow::Result;
use thalweg::schedule::OneCycle;
use thalweg::{Adam, models};

use super::classify::{classify, digits};
use super::{Defaults, Length, Recipe};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "mnist",
    alias: Some("lenet"),
    about: "LeNet on handwritten digits (MNIST)",
    defaults: Defaults { length: Length::Epochs(3), batch: 64, lr: 6e-3 },
    shows: false,
    run,
};

fn run(job: &Job) -> Result<()> {
    let data = digits(job)?;
    let schedule = OneCycle::new(job.settings.lr, job.steps(&data.train));
    let net = models::lenet(&mut job.rng());
    classify(job, net, Adam::new(job.settings.lr), schedule, data.train, data.test)
}
