//! LeNet on handwritten digits.

use anyhow::Result;
use thalweg::data::{Dataset, Examples, RandomCrop};
use thalweg::schedule::OneCycle;
use thalweg::train::Fitted;
use thalweg::{Adam, Sequential, models};

use super::{Defaults, Recipe, Split, digits};
use crate::train::Job;

pub static RECIPE: Recipe = Recipe {
    name: "mnist",
    alias: Some("lenet"),
    about: "LeNet on handwritten digits (MNIST)",
    defaults: Defaults { epochs: 6, batch: 64, lr: 3e-3 },
    data: digits,
    net: models::lenet,
    fit,
};

fn fit(job: &Job, net: Sequential, data: Split) -> Result<Fitted> {
    // Digits moved by up to a pixel are still the same digits.
    let images = data.train.x.reshape([-1, 28, 28]);
    let train = Examples::new(images, data.train.y)?.transformed(RandomCrop::new(28, 28, 1));
    let schedule = OneCycle::new(job.settings.lr, job.steps(&train));
    job.fit(net, Adam::new(job.settings.lr), schedule, train, data.test)
}
