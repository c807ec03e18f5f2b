//! Looking at many runs: a list, and a table that compares them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::error::TrainError;
use crate::metrics::Line;
use crate::run::Run;

/// A run, as far as a list needs it.
#[derive(Debug, Clone)]
pub struct RunSummary {
    /// The name of its folder.
    pub name: String,
    /// The folder.
    pub path: PathBuf,
    /// Whether it came to its end.
    pub finished: bool,
    /// The last step that was measured.
    pub step: u64,
    /// Seconds of training.
    pub seconds: f64,
    /// The last value of each metric.
    pub last: BTreeMap<String, f64>,
    /// The settings, with dotted names.
    pub config: BTreeMap<String, String>,
    /// Everything that was measured.
    pub lines: Vec<Line>,
}

impl RunSummary {
    /// Looks at one run.
    pub fn read(path: impl AsRef<Path>) -> Result<Self, TrainError> {
        let path = path.as_ref();
        let mut config = BTreeMap::new();
        flatten("", &Run::config_of(path)?, &mut config);
        let lines = Run::metrics_of(path)?;
        let mut last = BTreeMap::new();
        for line in &lines {
            last.extend(line.values.iter().map(|(k, &v)| (k.clone(), v)));
        }
        // `.` has no name of its own.
        let named = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        Ok(Self {
            name: named.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            path: path.to_owned(),
            finished: Run::summary_of(path)?.is_some(),
            step: lines.last().map_or(0, |l| l.step),
            seconds: lines.last().map_or(0.0, |l| l.seconds),
            last,
            config,
            lines,
        })
    }

    /// The points of one metric, as (step, value).
    pub fn series(&self, metric: &str) -> Vec<(f64, f64)> {
        self.lines.iter().filter_map(|l| Some((l.step as f64, *l.values.get(metric)?))).collect()
    }
}

/// The runs in a folder, or the folder itself when it is one, by name. Refuses a folder without any.
pub fn list(folder: impl AsRef<Path>) -> Result<Vec<RunSummary>, TrainError> {
    let folder = folder.as_ref();
    if folder.join("config.json").exists() {
        return Ok(vec![RunSummary::read(folder)?]);
    }
    let mut runs = Vec::new();
    for entry in std::fs::read_dir(folder).map_err(TrainError::io("list", folder))? {
        let path = entry.map_err(TrainError::io("list", folder))?.path();
        if path.join("config.json").exists() {
            runs.push(RunSummary::read(&path)?);
        }
    }
    if runs.is_empty() {
        return Err(TrainError::NoRuns { path: folder.to_owned() });
    }
    runs.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(runs)
}

/// Runs side by side: one row each, with the last value of each metric and the settings in which they differ.
pub fn table(runs: &[RunSummary]) -> String {
    let metrics: BTreeSet<&String> = runs.iter().flat_map(|r| r.last.keys()).collect();
    let differing = differing(runs);
    let mut rows = vec![Vec::new()];
    rows[0].extend(["run", "state", "step", "seconds"].map(str::to_owned));
    rows[0].extend(metrics.iter().map(|m| (*m).clone()));
    rows[0].extend(differing.iter().map(|s| (*s).clone()));
    for run in runs {
        let state = if run.finished { "finished" } else { "unfinished" };
        let mut row =
            vec![run.name.clone(), state.to_owned(), run.step.to_string(), format!("{:.1}", run.seconds)];
        row.extend(metrics.iter().map(|m| run.last.get(*m).map_or("-".to_owned(), |v| short(*v))));
        row.extend(differing.iter().map(|s| run.config.get(*s).cloned().unwrap_or("-".to_owned())));
        rows.push(row);
    }
    aligned(&rows, 2)
}

/// A few runs in columns: state, steps, time, the last and the best value of each metric, and the settings in which they
/// differ. What is lower is better for losses and errors, and what is higher for everything else.
pub fn compare(runs: &[RunSummary]) -> String {
    let mut rows = vec![row("", runs, |r| r.name.clone())];
    rows.push(row("state", runs, |r| if r.finished { "finished" } else { "unfinished" }.to_owned()));
    rows.push(row("steps", runs, |r| r.step.to_string()));
    rows.push(row("seconds", runs, |r| format!("{:.1}", r.seconds)));
    rows.push(row("steps/s", runs, |r| format!("{:.1}", r.step as f64 / r.seconds.max(1e-9))));
    let metrics: BTreeSet<&String> = runs.iter().flat_map(|r| r.last.keys()).collect();
    for metric in metrics {
        rows.push(row(metric, runs, |r| r.last.get(metric).map_or("-".to_owned(), |v| short(*v))));
        let best = |r: &RunSummary| {
            let falls = ["loss", "error", "objective", "perplexity"].iter().any(|w| metric.contains(w));
            let pick = if falls { f64::min } else { f64::max };
            r.series(metric).into_iter().map(|(_, v)| v).reduce(pick).map_or("-".to_owned(), short)
        };
        rows.push(row(&format!("  best {metric}"), runs, best));
    }
    for setting in differing(runs) {
        rows.push(row(setting, runs, |r| r.config.get(setting).cloned().unwrap_or("-".to_owned())));
    }
    aligned(&rows, 1)
}

fn row(name: &str, runs: &[RunSummary], cell: impl Fn(&RunSummary) -> String) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(runs.iter().map(cell)).collect()
}

/// The settings that are not the same in all runs.
fn differing(runs: &[RunSummary]) -> Vec<&String> {
    let settings: BTreeSet<&String> = runs.iter().flat_map(|r| r.config.keys()).collect();
    let differs = |s: &&String| runs.iter().any(|r| r.config.get(*s) != runs[0].config.get(*s));
    settings.into_iter().filter(differs).collect()
}

/// A number in about six characters.
pub(crate) fn short(v: f64) -> String {
    if v == 0.0 || (1e-3..1e5).contains(&v.abs()) { format!("{v:.4}") } else { format!("{v:.3e}") }
}

/// Columns as wide as their widest cell: the first ones, names, to the left, numbers to the right.
fn aligned(rows: &[Vec<String>], names: usize) -> String {
    let width = |c: usize| rows.iter().map(|r| r[c].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).enumerate().map(|(i, (cell, &w))| match i < names {
            true => format!("{cell:<w$}"),
            false => format!("{cell:>w$}"),
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned() + "\n"
    };
    rows.iter().map(line).collect()
}

/// Nested settings under dotted names.
fn flatten(prefix: &str, value: &Value, out: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let name = if prefix.is_empty() { key.clone() } else { format!("{prefix}.{key}") };
                flatten(&name, value, out);
            }
        }
        Value::String(s) => drop(out.insert(prefix.to_owned(), s.clone())),
        other => drop(out.insert(prefix.to_owned(), other.to_string())),
    }
}
