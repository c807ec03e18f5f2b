//! The tutorial network of every lecture on machine-learning systems: 784-100-10.

use anyhow::Result;
use thalweg::schedule::Constant;
use thalweg::train::Fitted;
use thalweg::{Adagrad, Rng, Sequential, models};

use super::{Defaults, Recipe, Split, digits};
use crate::train::Job;

pub static RECIPE: Recipe = Recipe {
    name: "mlp",
    alias: Some("tutorial"),
    about: "the lecture's 784-100-10 with AdaGrad on MNIST",
    defaults: Defaults { epochs: 10, batch: 100, lr: 0.02 },
    data: digits,
    net,
    fit,
};

fn net(rng: &mut Rng) -> Sequential {
    models::mlp(&[784, 100, 10], rng)
}

fn fit(job: &Job, net: Sequential, data: Split) -> Result<Fitted> {
    job.fit(net, Adagrad::new(job.settings.lr), Constant, data.train, data.test)
}
