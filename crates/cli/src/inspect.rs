//! `thalweg inspect`: what a file of tensors holds.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::Value;
use thalweg::train::Run;
use thalweg::{DType, Tensor};

use crate::progress::numbers;

pub fn run(path: &Path, values: bool) -> Result<()> {
    if !path.is_dir() {
        return tensors(path, values);
    }
    if Run::exists(path) {
        let config = Run::config_of(path)?;
        let settings = config.as_object().into_iter().flatten().map(|(name, value)| match value.as_str() {
            Some(text) => format!("{name} {text}"),
            None => format!("{name} {value}"),
        });
        println!("settings: {}", settings.collect::<Vec<_>>().join(", "));
    }
    let model = path.join("model.safetensors");
    if model.exists() {
        println!("\nmodel.safetensors");
        tensors(&model, values)?;
        println!();
    }
    checkpoints(path)
}

/// The tensors of a file.
fn tensors(path: &Path, values: bool) -> Result<()> {
    let tensors = thalweg::load(path)?;
    let mut out = std::io::stdout().lock();
    let width = tensors.keys().map(String::len).max().unwrap_or(4).max(4);
    writeln!(
        out,
        "{:<width$}  {:<5} {:<20} {:>12}  {:>11} {:>11} {:>11}",
        "name", "dtype", "shape", "bytes", "min", "mean", "max"
    )?;
    for (name, t) in &tensors {
        let [min, mean, max] = range(t);
        let shape = t.shape().to_string();
        writeln!(
            out,
            "{name:<width$}  {:<5} {shape:<20} {:>12}  {min:>11} {mean:>11} {max:>11}",
            t.dtype().name(),
            t.meta().bytes()
        )?;
        if values {
            writeln!(out, "{t}")?;
        }
    }
    let elements: usize = tensors.values().map(Tensor::numel).sum();
    let bytes: usize = tensors.values().map(|t| t.meta().bytes()).sum();
    writeln!(out, "{} tensors, {elements} elements, {bytes} bytes", tensors.len())?;
    Ok(())
}

/// The checkpoints of a run or of a folder of checkpoints, each checked as if it were to be loaded.
fn checkpoints(path: &Path) -> Result<()> {
    let inside = path.join("checkpoints");
    let folder = if inside.is_dir() { &inside } else { path };
    let found = thalweg::train::inspect(folder)?;
    ensure!(!found.is_empty(), "{} holds no checkpoints", folder.display());
    let mut out = std::io::stdout().lock();
    for checkpoint in found {
        match checkpoint.contents {
            Err(reason) => writeln!(out, "step {}: cannot be used: {reason}", checkpoint.step)?,
            Ok(loaded) => {
                writeln!(out, "checkpoint of step {}: {}", checkpoint.step, said(&loaded.state))?;
                for (name, tensors) in &loaded.parts {
                    let elements: usize = tensors.values().map(Tensor::numel).sum();
                    let bytes: usize = tensors.values().map(|t| t.meta().bytes()).sum();
                    writeln!(out, "  {name}: {} tensors, {elements} elements, {bytes} bytes", tensors.len())?;
                }
            }
        }
    }
    Ok(())
}

/// The state of a training in words; as it is when it is somebody else's.
fn said(state: &Value) -> String {
    let Ok(metrics) = serde_json::from_value::<BTreeMap<String, f64>>(state["metrics"].clone()) else {
        return state.to_string();
    };
    let place = &state["position"];
    let (epoch, sample) = (place["epoch"].as_u64().unwrap_or(0), place["sample"].as_u64().unwrap_or(0));
    format!("epoch {epoch}, sample {sample}; {}", numbers(&metrics))
}

/// Minimum, mean and maximum as short texts; dashes where there are no numbers.
fn range(t: &Tensor) -> [String; 3] {
    if t.numel() == 0 || t.dtype() == DType::Bool {
        return ["-"; 3].map(str::to_owned);
    }
    let t = t.to_dtype(DType::F64);
    [t.amin(()), t.mean(()), t.amax(())].map(|v| short(v.item::<f64>()))
}

fn short(v: f64) -> String {
    if v == 0.0 || (1e-3..1e6).contains(&v.abs()) { format!("{v:.4}") } else { format!("{v:.3e}") }
}
