//! `thalweg inspect`: what a file of tensors holds.

use std::io::Write;
use std::path::Path;

use anyhow::{Result, ensure};
use thalweg::{DType, Tensor};

pub fn run(path: &Path, values: bool) -> Result<()> {
    if path.is_dir() {
        return checkpoints(path);
    }
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
                let score = loaded.score.map_or(String::new(), |s| format!(", score {s}"));
                writeln!(out, "step {}{score}, state {}", checkpoint.step, loaded.state)?;
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
