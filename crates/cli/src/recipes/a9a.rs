//! Logistic regression with an L2 penalty on a9a: does someone earn more than 50,000 dollars a year?
//!
//! Reaches 84.9 % on the test set and the objective 0.3246, whose minimum is 0.32451.

use anyhow::{Context, Result};
use std::io::Write;
use thalweg::data::{Dataset, Sparse, libsvm};
use thalweg::schedule::Cosine;
use thalweg::train::{Best, Trainer};
use thalweg::{DType, Layer, Linear, Param, Sgd, Tensor, no_grad};

use super::{Defaults, Length, Recipe, file_in};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "a9a",
    alias: None,
    about: "logistic regression with L2 on incomes (a9a); --data FOLDER with a9a and a9a.t",
    defaults: Defaults { length: Length::Epochs(20), batch: 1024, lr: 1.0 },
    shows: false,
    run,
};

const PENALTY: f64 = 1e-4;

fn run(job: &Job) -> Result<()> {
    let (train, test) = read(job)?;
    let net = Linear::without_bias(train.n_features(), 1, &mut job.rng());
    // From 0, as solvers of convex problems begin.
    net.weight.set(Tensor::zeros([1, train.n_features()], DType::F32));
    let batches = train.batches(job.settings.batch);
    let schedule = Cosine { steps: job.steps(&train), min: 0.0 };
    let trainer = Trainer::new(net, Sgd::new(job.settings.lr).nesterov(0.95), objective)
        .metric("accuracy", |net, (x, y)| {
            let right = (net.forward(&x).squeeze(-1) * y).gt(0.0);
            right.to_dtype(DType::F64).mean(())
        })
        .observe("objective", move |net| of_all(net, &train))
        .validate(test.batches(4096))
        .watch("objective", Best::Lowest)
        .schedule(schedule);
    job.work(trainer, batches, |net| show(&net.weight))
}

/// mean log(1 + exp(−y · x·w)) + ½ · penalty · ‖w‖², with y = ±1.
fn objective(net: &Linear, (x, y): (Tensor, Tensor)) -> Tensor {
    let margins = net.forward(&x).squeeze(-1) * y;
    (-margins).softplus().mean(()) + net.weight.get().square().sum(()) * (0.5 * PENALTY)
}

/// The objective over all training samples.
fn of_all(net: &Linear, train: &Sparse) -> f64 {
    let parts = train.batches(4096).into_iter().map(|(x, y)| {
        let n = y.numel() as f64;
        n * no_grad(|| objective(net, (x, y))).to_dtype(DType::F64).item::<f64>()
    });
    parts.sum::<f64>() / train.len() as f64
}

fn read(job: &Job) -> Result<(Sparse, Sparse)> {
    let folder = job.settings.data.as_ref().context(
        "a9a is not inside: download a9a and a9a.t from the LIBSVM data page (binary classification) and \
         give their folder with --data FOLDER",
    )?;
    let train = libsvm::read(file_in(folder, &["a9a"])?, &libsvm::Options::default())?.data;
    let options = libsvm::Options { n_features: Some(train.n_features()), ..Default::default() };
    let test = libsvm::read(file_in(folder, &["a9a.t"])?, &options)?.data;
    Ok((train.first(job.limit(train.len())), test.first(job.limit(test.len()))))
}

/// The features that say most, either way.
fn show(weight: &Param) -> Result<()> {
    let weights = weight.get().to_vec::<f32>();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|&a, &b| weights[b].abs().total_cmp(&weights[a].abs()));
    for i in order.into_iter().take(10) {
        writeln!(std::io::stdout(), "feature {:>3}: {:+.3}", i + 1, weights[i])?;
    }
    Ok(())
}
