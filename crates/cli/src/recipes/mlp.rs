//! The tutorial network of every lecture on machine-learning systems: 784-100-10.

use anyhow::Result;
use thalweg::schedule::Constant;
use thalweg::{Adagrad, models};

use super::classify::{classify, digits};
use super::{Defaults, Length, Recipe};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "mlp",
    alias: Some("tutorial"),
    about: "the lecture's 784-100-10 with AdaGrad on MNIST",
    defaults: Defaults::net(Length::Epochs(20), 100, 0.03),
    shows: false,
    run,
};

fn run(job: &Job) -> Result<()> {
    let data = digits(job)?;
    let net = models::mlp(&[784, 100, 10], &mut job.rng());
    classify(job, net, Adagrad::new(job.lr()), Constant, data.train, data.test)
}
