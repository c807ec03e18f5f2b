//! A small residual network (He et al., 2015) on handwritten digits.

use anyhow::Result;
use thalweg::schedule::OneCycle;
use thalweg::{
    Activation, AdamW, AdaptiveAvgPool2d, BatchNorm, Conv2d, Flatten, Linear, Residual, Rng, Sequential,
};

use super::classify::{classify, digits};
use super::{Defaults, Length, Recipe};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "resnet",
    alias: None,
    about: "a small ResNet with batch norm on handwritten digits",
    defaults: Defaults::net(Length::Epochs(2), 128, 1e-2),
    shows: false,
    run,
};

fn run(job: &Job) -> Result<()> {
    let data = digits(job)?;
    let schedule = OneCycle::new(job.lr(), job.steps(&data.train));
    let net = net(&mut job.rng());
    classify(job, net, AdamW::new(job.lr()), schedule, data.train, data.test)
}

fn net(rng: &mut Rng) -> Sequential {
    Sequential::new()
        .map(|x| x.reshape([x.shape()[0], 1, 28, 28]))
        .then(Conv2d::new(1, 8, 3, rng).stride(2).padding(1).without_bias())
        .then(BatchNorm::new(8))
        .then(Activation::Relu)
        .then(block(8, 8, 1, rng))
        .then(block(8, 16, 2, rng))
        .then(block(16, 32, 2, rng))
        .then(AdaptiveAvgPool2d::new(1))
        .then(Flatten::default())
        .then(Linear::new(32, 10, rng))
}

/// Two convolutions beside a way around them.
fn block(inputs: usize, outputs: usize, stride: usize, rng: &mut Rng) -> Sequential {
    let inner = Sequential::new()
        .then(Conv2d::new(inputs, outputs, 3, rng).stride(stride).padding(1).without_bias())
        .then(BatchNorm::new(outputs))
        .then(Activation::Relu)
        .then(Conv2d::new(outputs, outputs, 3, rng).padding(1).without_bias())
        .then(BatchNorm::new(outputs));
    let sum = if inputs == outputs && stride == 1 {
        Sequential::new().then(Residual::new(inner))
    } else {
        let shortcut = Conv2d::new(inputs, outputs, 1, rng).stride(stride).without_bias();
        Sequential::new().then(Residual::with_shortcut(inner, shortcut))
    };
    sum.then(Activation::Relu)
}
