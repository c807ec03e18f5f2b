//! LeNet on handwritten digits: four epochs reach more than 99 %, also on a cluster that drops the slowest push.

use anyhow::Result;
use thalweg::data::{Dataset, Examples, RandomCrop};
use thalweg::schedule::OneCycle;
use thalweg::{Adam, models};

use super::classify::{classify, digits};
use super::{Defaults, Length, Recipe};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "mnist",
    alias: Some("lenet"),
    about: "LeNet on handwritten digits (MNIST)",
    defaults: Defaults::net(Length::Epochs(4), 128, 8e-3),
    shows: false,
    run,
};

fn run(job: &Job) -> Result<()> {
    let data = digits(job)?;
    // Digits moved by up to a pixel are still the same digits.
    let images = data.train.x.reshape([-1, 28, 28]);
    let train = Examples::new(images, data.train.y)?.transformed(RandomCrop::new(28, 28, 1));
    let schedule = OneCycle::new(job.lr(), job.steps(&train));
    let net = models::lenet(&mut job.rng());
    classify(job, net, Adam::new(job.lr()), schedule, train, data.test)
}
