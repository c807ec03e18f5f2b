//! `thalweg eval` and `thalweg predict`: a trained run at work.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use thalweg::data::{Channels, Dataset, decode};
use thalweg::train::load_latest;
use thalweg::{DType, Layer, Module, Rng, Sequential, Tensor, accuracy, load_weights, no_grad, set_weights};

use crate::recipes::Split;
use crate::train::Settings;

/// The net of a run, ready for use, and its data.
fn open(run: &Path) -> Result<(Sequential, Split)> {
    let (settings, recipe) = Settings::of(run)?;
    let net = (recipe.net)(&mut Rng::seed(settings.seed));
    let model = run.join("model.safetensors");
    if model.exists() {
        load_weights(&net, model)?;
    } else {
        let loaded = load_latest(run.join("checkpoints"))?
            .with_context(|| format!("{} has no model and no checkpoint yet", run.display()))?;
        let weights = loaded.parts.get("model").context("the checkpoint has no model")?;
        set_weights(&net, weights)?;
    }
    net.eval();
    Ok((net, settings.data(recipe)?))
}

pub fn eval(run: &Path, as_json: bool) -> Result<()> {
    let (net, data) = open(run)?;
    let (mut correct, mut loss) = (0.0, 0.0);
    for (x, y) in data.test.batches(500) {
        let (n, scores) = (y.numel() as f64, no_grad(|| net.forward(&x)));
        correct += n * accuracy(&scores, &y);
        loss += n * scores.cross_entropy(&y).to_dtype(DType::F64).item::<f64>();
    }
    let n = data.test.len() as f64;
    let (accuracy, loss) = (correct / n, loss / n);
    if as_json {
        println!("{}", json!({"run": run, "samples": n as u64, "accuracy": accuracy, "loss": loss}));
    } else {
        println!("{:.2} % of {n} test samples correct, loss {loss:.4}", 100.0 * accuracy);
    }
    Ok(())
}

pub fn predict(run: &Path, files: &[PathBuf], as_json: bool) -> Result<()> {
    let (net, data) = open(run)?;
    let width = data.test.x.shape()[1];
    let mut named = Vec::new();
    for file in files {
        named.extend(inputs(file, width)?);
    }
    if files.is_empty() {
        let row = |i: usize| {
            let truth = data.test.y.i(i).item::<i64>();
            (format!("test sample {i}, a {truth}"), data.test.x.i(i..i + 1))
        };
        named.extend((0..data.test.len().min(10)).map(row));
    }
    let mut out = std::io::stdout().lock();
    for (name, x) in named {
        let shares = no_grad(|| net.forward(&x)).softmax(-1);
        let (class, share) = (shares.argmax(-1).i(0).item::<i64>(), shares.amax(()).item::<f32>());
        if as_json {
            let shares = shares.to_vec::<f32>();
            writeln!(out, "{}", json!({"input": name, "class": class, "probabilities": shares}))?;
        } else {
            writeln!(out, "{name}: {class} ({:.1} %)", 100.0 * share)?;
        }
    }
    Ok(())
}

/// The inputs in a file: rows of a `.npy` file, or one picture, grey on black as in the training set.
fn inputs(file: &Path, width: usize) -> Result<Vec<(String, Tensor)>> {
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
