//! Logistic regression with an L2 penalty: is a tumour malignant?

use anyhow::Result;
use thalweg::data::{Examples, breast_cancer};
use thalweg::schedule::Constant;
use thalweg::train::Fitted;
use thalweg::{Rng, Sequential, Sgd, models};

use super::{Defaults, Recipe, Split};
use crate::train::Job;

pub static RECIPE: Recipe = Recipe {
    name: "logistic",
    alias: None,
    about: "logistic regression with L2 on tumours (breast cancer)",
    defaults: Defaults { epochs: 50, batch: 32, lr: 0.05 },
    data,
    net,
    fit,
};

/// Four fifths to learn from; each measure has mean 0 and deviation 1 there.
fn data() -> Result<Split> {
    let (train, test) = breast_cancer()?.data.split(0.8, 0);
    let (mean, std) = (train.x.mean_keepdim(0), train.x.std_keepdim(0, 0));
    let scaled = |half: &Examples| Examples::new((&half.x - &mean) / &std, half.y.clone());
    Ok(Split { train: scaled(&train)?, test: scaled(&test)? })
}

fn net(rng: &mut Rng) -> Sequential {
    models::mlp(&[30, 2], rng)
}

fn fit(job: &Job, net: Sequential, data: Split) -> Result<Fitted> {
    let optimizer = Sgd::new(job.settings.lr).weight_decay(1e-3);
    job.fit(net, optimizer, Constant, data.train, data.test)
}
