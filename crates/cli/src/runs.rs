//! `thalweg runs` and `thalweg report`: what runs left behind.

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::json;
use thalweg::train::{RunSummary, compare, list, report as page, table};

pub fn run(paths: &[PathBuf], in_columns: bool, as_json: bool) -> Result<()> {
    let runs = all(paths)?;
    let mut out = std::io::stdout().lock();
    if !as_json {
        write!(out, "{}", if in_columns { compare(&runs) } else { table(&runs) })?;
        return Ok(());
    }
    for run in &runs {
        let line = json!({
            "run": run.name, "path": run.path, "finished": run.finished, "step": run.step, "seconds": run.seconds,
            "metrics": run.last, "config": run.config,
        });
        writeln!(out, "{line}")?;
    }
    Ok(())
}

pub fn report(run: &Path, out: Option<PathBuf>) -> Result<()> {
    let text = page(run)?;
    let out = out.unwrap_or_else(|| run.join("report.html"));
    std::fs::write(&out, text).with_context(|| format!("write {}", out.display()))?;
    println!("{}", out.display());
    Ok(())
}

/// The runs of several folders.
pub fn all(paths: &[PathBuf]) -> Result<Vec<RunSummary>> {
    let mut runs = Vec::new();
    for path in paths {
        runs.extend(list(path)?);
    }
    Ok(runs)
}
