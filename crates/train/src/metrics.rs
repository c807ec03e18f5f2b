//! Metrics as JSON lines: `{"step":200,"seconds":3.5,"loss":0.25}`.
//!
//! A line is written in one call, so a killed process leaves at most one broken line, the last; it is cut off
//! when the run goes on. NaN and infinities, which JSON does not have, are written as text.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::error::TrainError;

/// What was measured at one step.
#[derive(Debug, Clone, PartialEq)]
pub struct Line {
    /// The step.
    pub step: u64,
    /// Seconds since the run began, without the time in which it was stopped.
    pub seconds: f64,
    /// The numbers, by name.
    pub values: BTreeMap<String, f64>,
}

impl Line {
    fn to_json(&self) -> String {
        let number = |v: f64| {
            serde_json::Number::from_f64(v).map_or_else(|| Value::String(v.to_string()), Value::Number)
        };
        let mut line = Map::new();
        line.insert("step".into(), self.step.into());
        line.insert("seconds".into(), number(self.seconds));
        line.extend(self.values.iter().map(|(k, &v)| (k.clone(), number(v))));
        Value::Object(line).to_string()
    }

    fn from_json(text: &str) -> Result<Self, String> {
        let mut line: Map<String, Value> = serde_json::from_str(text).map_err(|e| e.to_string())?;
        let step = line.remove("step").and_then(|v| v.as_u64()).ok_or("`step` is not a whole number")?;
        let mut values = BTreeMap::new();
        for (name, value) in line {
            let number = match &value {
                Value::Number(n) => n.as_f64(),
                Value::String(s) => s.parse().ok(),
                _ => None,
            };
            values.insert(name.clone(), number.ok_or_else(|| format!("`{name}` is not a number"))?);
        }
        let seconds = values.remove("seconds").ok_or("`seconds` is missing")?;
        Ok(Self { step, seconds, values })
    }
}

/// The metrics file of a run that is being written.
#[derive(Debug)]
pub struct Metrics {
    file: File,
    path: PathBuf,
}

impl Metrics {
    /// Opens the file for more lines. A last line without an end, left by a process that was killed, is cut off.
    pub fn append(path: &Path) -> Result<Self, TrainError> {
        let failed = |action| TrainError::io(action, path);
        let mut file =
            OpenOptions::new().read(true).append(true).create(true).open(path).map_err(failed("open"))?;
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(0)).and_then(|_| file.read_to_end(&mut bytes)).map_err(failed("read"))?;
        let whole = bytes.iter().rposition(|&b| b == b'\n').map_or(0, |at| at + 1);
        if whole < bytes.len() {
            file.set_len(whole as u64).map_err(failed("write"))?;
        }
        Ok(Self { file, path: path.to_owned() })
    }

    /// Writes one line.
    pub fn log(&mut self, line: &Line) -> Result<(), TrainError> {
        let text = line.to_json() + "\n";
        self.file.write_all(text.as_bytes()).map_err(TrainError::io("write", &self.path))
    }

    /// All whole lines of a file; none when there is no file yet.
    pub fn read(path: &Path) -> Result<Vec<Line>, TrainError> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(TrainError::io("read", path)(e)),
        };
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        let parse = |(i, line): (usize, &str)| {
            Line::from_json(line).map_err(|reason| TrainError::Json {
                path: path.to_owned(),
                line: i + 1,
                reason,
            })
        };
        whole.lines().enumerate().map(parse).collect()
    }

    /// Forgets what was measured after a step: a run that resumes there will measure it again.
    pub fn rewind(path: &Path, step: u64) -> Result<(), TrainError> {
        let lines = Self::read(path)?;
        if lines.iter().all(|l| l.step <= step) {
            return Ok(());
        }
        let kept: String = lines.iter().filter(|l| l.step <= step).map(|l| l.to_json() + "\n").collect();
        Ok(thalweg_formats::replace(path, |w| w.write_all(kept.as_bytes()))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(test: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("thalweg-metrics-{}-{test}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        path
    }

    fn line(step: u64, loss: f64) -> Line {
        Line { step, seconds: step as f64 / 7.0, values: BTreeMap::from([("loss".to_owned(), loss)]) }
    }

    #[test]
    fn every_number_comes_back_as_it_was() {
        let path = path("numbers");
        let mut m = Metrics::append(&path).unwrap();
        let all = [0.1, -0.0, 1e-300, f64::MAX, f64::INFINITY, f64::NEG_INFINITY, 1.0 / 3.0];
        all.iter().zip(0..).for_each(|(&v, i)| m.log(&line(i, v)).unwrap());
        m.log(&line(99, f64::NAN)).unwrap();
        let read = Metrics::read(&path).unwrap();
        for (l, v) in read.iter().zip(all) {
            assert_eq!(l.values["loss"].to_bits(), v.to_bits());
        }
        assert!(read[all.len()].values["loss"].is_nan());
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_torn_last_line_is_cut_off_and_the_run_goes_on() {
        let path = path("torn");
        let mut m = Metrics::append(&path).unwrap();
        m.log(&line(1, 0.5)).unwrap();
        m.file.write_all(br#"{"step":2,"lo"#).unwrap();
        assert_eq!(Metrics::read(&path).unwrap(), [line(1, 0.5)]);
        let mut m = Metrics::append(&path).unwrap();
        m.log(&line(2, 0.25)).unwrap();
        assert_eq!(Metrics::read(&path).unwrap(), [line(1, 0.5), line(2, 0.25)]);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn rewinding_forgets_later_steps() {
        let path = path("rewind");
        let mut m = Metrics::append(&path).unwrap();
        (1..=5).for_each(|s| m.log(&line(s, 0.0)).unwrap());
        Metrics::rewind(&path, 3).unwrap();
        assert_eq!(Metrics::read(&path).unwrap().iter().map(|l| l.step).collect::<Vec<_>>(), [1, 2, 3]);
        std::fs::remove_file(path).unwrap();
    }

    #[test]
    fn a_broken_line_in_the_middle_is_named() {
        let path = path("broken");
        std::fs::write(&path, "{\"step\":1,\"seconds\":0}\n{\"step\":-1}\n").unwrap();
        let e = Metrics::read(&path).unwrap_err().to_string();
        assert!(e.ends_with(":2: `step` is not a whole number"), "{e}");
        std::fs::remove_file(path).unwrap();
    }
}
