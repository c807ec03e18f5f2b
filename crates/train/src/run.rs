//! The folder of one training run.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::Serialize;
use serde_json::Value;
use thalweg_data::Image;
use thalweg_tensor::Tensor;

use crate::checkpoint::{Checkpoints, Keep, Loaded, Place, load_latest};
use crate::error::TrainError;
use crate::events::EventWriter;
use crate::mark::Mark;
use crate::metrics::{Line, Metrics};

const CONFIG: &str = "config.json";
const METRICS: &str = "metrics.jsonl";
const SUMMARY: &str = "summary.json";
const MARK: &str = "bookmark";

/// A run that is being written: `config.json`, `metrics.jsonl`, an event file, `checkpoints/`, a `bookmark` where
/// others may go on in the middle, and `summary.json` when it is done.
///
/// ```
/// use serde_json::json;
/// use thalweg_train::Run;
/// let dir = std::env::temp_dir().join(format!("thalweg-run-doc-{}", std::process::id()));
/// let mut run = Run::create(&dir, &json!({"lr": 0.1}))?;
/// run.log(1, &[("loss", 2.3)])?;
/// run.log(2, &[("loss", 1.9), ("accuracy", 0.4)])?;
/// run.finish(&json!({"accuracy": 0.4}))?;
/// assert_eq!(Run::metrics_of(&dir)?.len(), 2);
/// # std::fs::remove_dir_all(dir).unwrap();
/// # Ok::<(), thalweg_train::TrainError>(())
/// ```
#[derive(Debug)]
pub struct Run {
    path: PathBuf,
    metrics: Metrics,
    events: EventWriter,
    mark: Option<File>, // once there is one
    began: Instant,
    /// Seconds of the processes before this one.
    before: f64,
}

impl Run {
    /// A new run. Refuses a folder that holds one already.
    pub fn create(path: impl AsRef<Path>, config: &impl Serialize) -> Result<Self, TrainError> {
        let path = path.as_ref();
        if Self::exists(path) {
            return Err(TrainError::Exists { path: path.to_owned() });
        }
        std::fs::create_dir_all(path).map_err(TrainError::io("create", path))?;
        write_json(&path.join(CONFIG), config)?;
        Self::start(path, 0.0, EventWriter::create(path)?)
    }

    /// Goes on with a run at its newest whole checkpoint, which is returned, or at its start. What was measured after
    /// that is forgotten.
    pub fn resume(path: impl AsRef<Path>) -> Result<(Self, Option<Loaded>), TrainError> {
        Self::resume_from(path.as_ref(), path.as_ref().join("checkpoints"))
    }

    /// The same, with checkpoints that lie elsewhere.
    pub fn resume_from(
        path: impl AsRef<Path>,
        checkpoints: impl Into<Place>,
    ) -> Result<(Self, Option<Loaded>), TrainError> {
        let loaded = load_latest(checkpoints)?;
        Ok((Self::resume_at(path, loaded.as_ref().map_or(0, |l| l.step))?, loaded))
    }

    /// The same, at a step that is known: what was written after it is forgotten.
    pub fn resume_at(path: impl AsRef<Path>, step: u64) -> Result<Self, TrainError> {
        let path = path.as_ref();
        Self::config_of(path)?;
        Metrics::rewind(&path.join(METRICS), step)?;
        let before = Self::metrics_of(path)?.last().map_or(0.0, |l| l.seconds);
        let (summary, mark) = (path.join(SUMMARY), path.join(MARK));
        let is_later = Self::mark_of(path).is_some_and(|mark| mark.step > step);
        for (file, goes) in [(&summary, summary.exists()), (&mark, is_later)] {
            if goes {
                std::fs::remove_file(file).map_err(TrainError::io("remove", file))?;
            }
        }
        Self::start(path, before, EventWriter::resume(path, step)?)
    }

    fn start(path: &Path, before: f64, events: EventWriter) -> Result<Self, TrainError> {
        let metrics = Metrics::append(&path.join(METRICS))?;
        Ok(Self { path: path.to_owned(), metrics, events, mark: None, began: Instant::now(), before })
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Seconds of training so far, over all processes.
    pub fn seconds(&self) -> f64 {
        self.before + self.began.elapsed().as_secs_f64()
    }

    /// Writes numbers down, to the metrics and as events.
    pub fn log(&mut self, step: u64, values: &[(&str, f64)]) -> Result<(), TrainError> {
        let seconds = self.seconds();
        let by_name: BTreeMap<String, f64> = values.iter().map(|&(n, v)| (n.to_owned(), v)).collect();
        self.metrics.log(&Line { step, seconds, values: by_name })?;
        values.iter().try_for_each(|&(name, value)| self.events.scalar(step, name, value as f32))
    }

    /// Marks how far the run is, with the losses that no line tells of yet: how many, and their sum. Only the last mark counts.
    pub fn mark(&mut self, step: u64, pending: (u64, f64)) {
        if self.mark.is_none() {
            self.mark = Mark::open(&self.path.join(MARK));
        }
        self.mark.iter_mut().for_each(|file| Mark { step, pending }.write(file));
    }

    /// Writes down how the values of a tensor are distributed.
    pub fn log_histogram(&mut self, step: u64, name: &str, values: &Tensor) -> Result<(), TrainError> {
        self.events.histogram(step, name, values)
    }

    /// Writes a picture down.
    pub fn log_image(&mut self, step: u64, name: &str, image: &Image) -> Result<(), TrainError> {
        self.events.image(step, name, image)
    }

    /// The checkpoints of this run, for writing.
    pub fn checkpoints(&self, keep: Keep) -> Result<Checkpoints, TrainError> {
        Checkpoints::open(self.path.join("checkpoints"), keep)
    }

    /// Says that the run has come to its end, and with what.
    pub fn finish(&mut self, summary: &impl Serialize) -> Result<(), TrainError> {
        self.events.sync()?;
        write_json(&self.path.join(SUMMARY), summary)
    }

    /// Whether a folder holds a run.
    pub fn exists(path: impl AsRef<Path>) -> bool {
        path.as_ref().join(CONFIG).exists()
    }

    /// The configuration of a run.
    pub fn config_of(path: impl AsRef<Path>) -> Result<Value, TrainError> {
        let path = path.as_ref();
        read_json(&path.join(CONFIG))?.ok_or(TrainError::NotARun { path: path.to_owned(), file: CONFIG })
    }

    /// The metrics of a run.
    pub fn metrics_of(path: impl AsRef<Path>) -> Result<Vec<Line>, TrainError> {
        Metrics::read(&path.as_ref().join(METRICS))
    }

    /// How far a run was last marked to be.
    pub fn mark_of(path: impl AsRef<Path>) -> Option<Mark> {
        Mark::read(&path.as_ref().join(MARK))
    }

    /// What a run that has come to its end said; `None` when it has not.
    pub fn summary_of(path: impl AsRef<Path>) -> Result<Option<Value>, TrainError> {
        read_json(&path.as_ref().join(SUMMARY))
    }
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), TrainError> {
    let wrong =
        |e: serde_json::Error| TrainError::Json { path: path.to_owned(), line: 1, reason: e.to_string() };
    let text = serde_json::to_string_pretty(value).map_err(wrong)? + "\n";
    Ok(thalweg_formats::replace(path, |w| w.write_all(text.as_bytes()))?)
}

fn read_json(path: &Path) -> Result<Option<Value>, TrainError> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(TrainError::io("read", path)(e)),
    };
    let wrong = |e: serde_json::Error| TrainError::Json {
        path: path.to_owned(),
        line: e.line(),
        reason: e.to_string(),
    };
    serde_json::from_str(&text).map(Some).map_err(wrong)
}
