//! The file that makes a checkpoint: what belongs to it, and how to tell that it is whole.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

use super::place::Files;
use crate::error::TrainError;

/// The only version there is.
const VERSION: u32 = 1;

#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Manifest {
    pub(super) version: u32,
    pub(super) step: u64,
    pub(super) score: Option<f64>,
    pub(super) state: Value,
    pub(super) parts: BTreeMap<String, PartFile>,
}

/// A file of tensors. Its step is older than the manifest's when the part is saved less often.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PartFile {
    pub(super) file: String,
    pub(super) step: u64,
    pub(super) bytes: u64,
    pub(super) sha256: String,
}

/// A manifest as it stands in its file: with a checksum over its own text.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Sealed<'a> {
    sha256: String,
    #[serde(borrow)]
    manifest: &'a RawValue,
}

impl Manifest {
    pub(super) fn new(
        step: u64,
        score: Option<f64>,
        state: Value,
        parts: BTreeMap<String, PartFile>,
    ) -> Self {
        // JSON has no NaN; a score that is none is never the best.
        Self { version: VERSION, step, score: score.filter(|s| s.is_finite()), state, parts }
    }

    pub(super) fn write(&self, files: &dyn Files) -> Result<(), TrainError> {
        let text = serde_json::to_string_pretty(self).expect("a manifest is always JSON");
        let raw = RawValue::from_string(text).expect("it has just been written");
        let sealed = Sealed { sha256: sha256(raw.get().as_bytes()), manifest: &raw };
        let text = serde_json::to_string_pretty(&sealed).expect("a manifest is always JSON") + "\n";
        files.replace(&manifest_name(self.step), text.as_bytes())
    }

    /// The manifest of a step, or what is wrong with it.
    pub(super) fn read(files: &dyn Files, step: u64) -> Result<Self, String> {
        let text = files.read(&manifest_name(step)).map_err(|e| e.to_string())?;
        let sealed: Sealed = serde_json::from_slice(&text).map_err(|e| e.to_string())?;
        let got = sha256(sealed.manifest.get().as_bytes());
        if got != sealed.sha256 {
            return Err(format!("its checksum is {got}, not {}", sealed.sha256));
        }
        let manifest: Self = serde_json::from_str(sealed.manifest.get()).map_err(|e| e.to_string())?;
        match manifest.version {
            VERSION => Ok(manifest),
            other => Err(format!("version {other} is not known, only {VERSION} is")),
        }
    }
}

impl PartFile {
    /// The bytes of the file, or what is wrong with it.
    pub(super) fn read(&self, files: &dyn Files) -> Result<Vec<u8>, String> {
        let wrong = |reason: String| format!("{}: {reason}", files.path().join(&self.file).display());
        let bytes = files.read(&self.file).map_err(|e| e.to_string())?;
        if bytes.len() as u64 != self.bytes {
            return Err(wrong(format!("it has {} bytes, not {}", bytes.len(), self.bytes)));
        }
        match sha256(&bytes) {
            got if got == self.sha256 => Ok(bytes),
            got => Err(wrong(format!("its checksum is {got}, not {}", self.sha256))),
        }
    }

    pub(super) fn is_whole(&self, files: &dyn Files) -> bool {
        self.read(files).is_ok()
    }
}

pub(super) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|b| format!("{b:02x}")).collect()
}

fn manifest_name(step: u64) -> String {
    format!("step-{step:010}.json")
}

pub(super) fn remove_manifest(files: &dyn Files, step: u64) -> Result<(), TrainError> {
    files.remove(&manifest_name(step))
}

pub(super) fn part_name(step: u64, part: &str) -> String {
    format!("step-{step:010}.{part}.safetensors")
}

/// The steps that have a manifest, newest first, whether or not it can be read.
pub(super) fn steps(files: &dyn Files) -> Result<Vec<u64>, TrainError> {
    let mut steps: Vec<u64> = files
        .names()?
        .iter()
        .filter_map(|n| n.strip_prefix("step-")?.strip_suffix(".json")?.parse().ok())
        .collect();
    steps.sort_unstable_by(|a, b| b.cmp(a));
    Ok(steps)
}
