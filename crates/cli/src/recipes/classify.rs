//! What the classifiers have in common: classes as targets, pictures or rows of numbers as inputs.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use thalweg::data::{Channels, Dataset, Examples, breast_cancer, decode};
use thalweg::schedule::Schedule;
use thalweg::train::{Best, Trainer};
use thalweg::{DType, Layer, Module, Optimizer, Rule, Tensor, hit_rate, no_grad};

use crate::job::Job;

/// Samples to learn from, and others to be measured on.
pub struct Split {
    pub train: Examples,
    pub test: Examples,
}

impl Split {
    /// As many as the job wants.
    pub fn limited(self, job: &Job) -> Self {
        let cut = |all: Examples| all.rows(0..job.limit(all.len()));
        Self { train: cut(self.train), test: cut(self.test) }
    }
}

/// The digits of MNIST.
pub fn digits(job: &Job) -> Result<Split> {
    let data = thalweg::data::mnist()?;
    Ok(Split { train: data.train, test: data.test }.limited(job))
}

/// Measures of tumours: four fifths to learn from, where each measure has mean 0 and deviation 1.
pub fn tumours(job: &Job) -> Result<Split> {
    let (train, test) = breast_cancer()?.data.split(0.8, 0);
    let (mean, std) = (train.x.mean_keepdim(0), train.x.std_keepdim(0, 0));
    let scaled = |half: &Examples| Examples::new((&half.x - &mean) / &std, half.y.clone());
    Ok(Split { train: scaled(&train)?, test: scaled(&test)? }.limited(job))
}

/// Trains a classifier by cross-entropy. `train` is what it learns from, perhaps with changes at random.
pub fn classify<N: Module + Layer, R: Rule + Send + 'static>(
    job: &Job,
    net: N,
    optimizer: Optimizer<R>,
    schedule: impl Schedule + 'static,
    train: impl Dataset<Batch = (Tensor, Tensor)>,
    test: Examples,
) -> Result<()> {
    let trainer = Trainer::new(net, optimizer, |net: &N, (x, y)| net.forward(&x).cross_entropy(&y))
        .metric("accuracy", |net, (x, y)| hit_rate(&net.forward(&x), &y))
        .validate(test.batches(500))
        .watch("accuracy", Best::Highest)
        .schedule(schedule);
    job.work(trainer, train.batches(job.batch()), |net| predict(job, net, &test))
}

/// Classes of the inputs, or of the first test samples.
fn predict(job: &Job, net: &impl Layer, test: &Examples) -> Result<()> {
    let width: usize = test.x.shape()[1..].iter().product();
    let mut named = Vec::new();
    for input in job.inputs() {
        named.extend(read(Path::new(input), width)?);
    }
    if named.is_empty() {
        let row = |i: usize| {
            let truth = test.y.i(i).item::<i64>();
            (format!("test sample {i}, a {truth}"), test.x.i(i..i + 1))
        };
        named.extend((0..test.len().min(10)).map(row));
    }
    let mut out = std::io::stdout().lock();
    for (name, x) in named {
        let shares = no_grad(|| net.forward(&x)).softmax(-1);
        let (class, share) = (shares.argmax(-1).i(0).item::<i64>(), shares.amax(()).item::<f32>());
        if job.json {
            let shares = shares.to_vec::<f32>();
            writeln!(out, "{}", json!({"input": name, "class": class, "probabilities": shares}))?;
        } else {
            writeln!(out, "{name}: {class} ({:.1} %)", 100.0 * share)?;
        }
    }
    Ok(())
}

/// The inputs in a file: rows of a `.npy` file, or one picture, grey on black as in the training set.
fn read(file: &Path, width: usize) -> Result<Vec<(String, Tensor)>> {
    let name = file.display();
    if file.extension().is_some_and(|e| e == "npy") {
        let x = thalweg::load_npy(file)?.to_dtype(DType::F32);
        ensure!(
            x.rank() > 0 && x.numel() == x.shape()[0] * width,
            "{name}: an input has {width} numbers; this file has the shape {}",
            x.shape()
        );
        let x = x.reshape([x.shape()[0], width]);
        return Ok((0..x.shape()[0]).map(|i| (format!("{name} row {i}"), x.i(i..i + 1))).collect());
    }
    let bytes = std::fs::read(file).with_context(|| format!("read {name}"))?;
    let image = match decode(&bytes, Channels::Grey) {
        Ok(image) => image,
        Err(reason) => bail!("{name}: {reason} (use .npy, .png or .jpg)"),
    };
    let side = width.isqrt();
    ensure!(side * side == width, "{name}: this net takes {width} numbers, no picture; use .npy");
    ensure!(
        (image.width, image.height) == (side, side),
        "{name}: the picture has {} x {} pixels; make it {side} x {side}, light on dark",
        image.width,
        image.height
    );
    let grey: Vec<f32> = image.pixels.iter().map(|&g| f32::from(g) / 255.0).collect();
    Ok(vec![(name.to_string(), Tensor::from_slice(&grey, [1, width]))])
}
