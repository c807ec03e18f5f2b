//! What the page shows of runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use thalweg::train::{Run, RunSummary};

/// Points of a curve; more than a screen can show are thinned out.
const POINTS: usize = 800;

/// The runs of a folder. Those that have not changed are not read again.
pub struct Watched {
    folder: PathBuf,
    /// By folder: how long the metrics were, and what was read.
    known: BTreeMap<PathBuf, (u64, Result<RunSummary, String>)>,
}

impl Watched {
    pub fn new(folder: PathBuf) -> Self {
        Self { folder, known: BTreeMap::new() }
    }

    /// Everything but the system. A run that cannot be read is shown with the reason.
    pub fn state(&mut self) -> Value {
        let mut known = std::mem::take(&mut self.known);
        for path in runs_in(&self.folder) {
            let length = |file: &str| std::fs::metadata(path.join(file)).map_or(0, |m| m.len());
            // The summary comes last, and ends a run.
            let size = length("metrics.jsonl") + length("summary.json");
            let read = match known.remove(&path) {
                Some((before, read)) if before == size => read,
                _ => RunSummary::read(&path).map_err(|e| e.to_string()),
            };
            self.known.insert(path, (size, read));
        }
        let runs: Vec<Value> = self.known.iter().map(|(path, (_, read))| shown(path, read)).collect();
        json!({"folder": self.folder, "runs": runs})
    }

    /// The drawing of a run's compiled step.
    pub fn graph(&self, run: &str) -> Option<String> {
        // Only what is listed, so that no name leads out of the folder.
        let path = self.known.keys().find(|p| name(p) == run)?;
        std::fs::read_to_string(path.join("graph.html")).ok()
    }
}

/// The folder itself when it is a run, or the runs in it; none when it is not there yet.
fn runs_in(folder: &Path) -> Vec<PathBuf> {
    if Run::exists(folder) {
        return vec![folder.to_owned()];
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|e| e.path()).filter(|p| Run::exists(p)).collect()
}

fn name(path: &Path) -> String {
    // `.` has no name of its own.
    let named = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    named.file_name().unwrap_or_default().to_string_lossy().chars().map(plain).collect()
}

fn shown(path: &Path, read: &Result<RunSummary, String>) -> Value {
    let run = match read {
        Ok(run) => run,
        Err(reason) => return json!({"name": name(path), "error": reason}),
    };
    let series: BTreeMap<&String, Vec<[f64; 3]>> = run
        .last
        .keys()
        .map(|metric| {
            let of = |l: &thalweg::train::Line| Some([l.step as f64, l.seconds, *l.values.get(metric)?]);
            (metric, thinned(run.lines.iter().filter_map(of).collect()))
        })
        .collect();
    json!({
        "name": name(path), "finished": run.finished, "step": run.step, "seconds": run.seconds, "last": run.last,
        "config": run.config, "graph": path.join("graph.html").exists(), "series": series,
    })
}

/// Evenly spread points, the last among them.
fn thinned(points: Vec<[f64; 3]>) -> Vec<[f64; 3]> {
    let n = points.len();
    if n <= POINTS {
        return points;
    }
    (0..POINTS).map(|i| points[i * (n - 1) / (POINTS - 1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinned_curves_keep_their_ends() {
        let points: Vec<[f64; 3]> = (0..10_000).map(|i| [f64::from(i), 0.0, 0.0]).collect();
        let thin = thinned(points);
        assert_eq!((thin.len(), thin[0][0], thin[POINTS - 1][0]), (POINTS, 0.0, 9999.0));
        assert_eq!(thinned(vec![[1.0; 3]]).len(), 1);
    }

    #[test]
    fn a_folder_that_is_not_there_yet_has_no_runs() {
        let state = Watched::new("no such folder".into()).state();
        assert_eq!(state["runs"], json!([]));
    }
}
