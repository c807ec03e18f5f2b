//! The perceptron (Rosenblatt, 1958): one sample at a time, and only mistakes move the weights.

use anyhow::Result;
use std::io::Write;
use thalweg::data::Dataset;
use thalweg::train::{Best, Trainer};
use thalweg::{DType, Layer, Linear, Sgd, Tensor};

use super::classify::tumours;
use super::{Defaults, Length, Recipe};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "perceptron",
    alias: None,
    about: "Rosenblatt's perceptron on tumours (breast cancer)",
    defaults: Defaults::net(Length::Epochs(10), 1, 0.1),
    shows: false,
    run,
};

fn run(job: &Job) -> Result<()> {
    let data = tumours(job)?;
    let net = Linear::new(30, 1, &mut job.rng());
    let trainer = Trainer::new(net, Sgd::new(job.lr()), |net: &Linear, batch: (Tensor, Tensor)| {
        // Rosenblatt's rule is the gradient of this: 0 where the side is right, y · x where it is wrong.
        (-margins(net, &batch)).relu().mean(())
    })
    .metric("accuracy", |net, batch| margins(net, &batch).gt(0.0).to_dtype(DType::F64).mean(()))
    .validate(data.test.batches(500))
    .watch("accuracy", Best::Highest);
    let test = data.test.clone();
    job.work(trainer, data.train.batches(job.batch()), |net| {
        let margins = margins(net, &(test.x.clone(), test.y.clone())).to_vec::<f32>();
        for (i, margin) in margins.iter().take(10).enumerate() {
            writeln!(
                std::io::stdout(),
                "test sample {i}: {} by {:.2}",
                if *margin > 0.0 { "right" } else { "wrong" },
                margin.abs()
            )?;
        }
        Ok(())
    })
}

/// How far on the right side each sample is; classes are 0 and 1.
fn margins(net: &Linear, (x, y): &(Tensor, Tensor)) -> Tensor {
    net.forward(x).squeeze(-1) * (y.to_dtype(DType::F32) * 2.0 - 1.0)
}
