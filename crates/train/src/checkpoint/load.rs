//! Finding the newest checkpoint that is whole.

use std::collections::BTreeMap;

use serde_json::Value;
use thalweg_formats::safetensors;
use thalweg_tensor::Tensor;

use super::manifest::{Manifest, steps};
use super::place::{Files, Place};
use super::shards::merge;
use super::writer::Best;
use crate::error::TrainError;

/// What a checkpoint holds.
#[derive(Debug)]
pub struct Loaded {
    /// The step after which it was written.
    pub step: u64,
    /// The score it was given.
    pub score: Option<f64>,
    /// Everything that is no tensor.
    pub state: Value,
    /// The tensors, by part and name.
    pub parts: BTreeMap<String, BTreeMap<String, Tensor>>,
    /// Newer checkpoints that could not be loaded, each with its reason: to be shown to the user.
    pub passed_over: Vec<String>,
}

/// What stands on disk for one checkpoint.
#[derive(Debug)]
pub struct CheckpointInfo {
    /// The step after which it was written.
    pub step: u64,
    /// What it holds, or why it cannot be used.
    pub contents: Result<Loaded, String>,
}

/// Every checkpoint of a place, newest first, each read and checked.
pub fn inspect(place: impl Into<Place>) -> Result<Vec<CheckpointInfo>, TrainError> {
    let place = place.into();
    let files = place.files();
    Ok(steps(files)?.into_iter().map(|step| CheckpointInfo { step, contents: load(files, step) }).collect())
}

/// The newest whole checkpoint of a place; `None` when there is none at all. A damaged one is passed over, and the
/// result says so; when all are damaged, that is an error.
pub fn load_latest(place: impl Into<Place>) -> Result<Option<Loaded>, TrainError> {
    let place = place.into();
    let files = place.files();
    loop {
        let listed = steps(files)?;
        match first_whole(files, listed.clone()) {
            // Another process has written and removed checkpoints meanwhile.
            Err(TrainError::AllBroken { .. }) if steps(files)? != listed => {}
            outcome => return outcome,
        }
    }
}

/// The checkpoint of this step, whatever came after it.
pub fn load_step(place: impl Into<Place>, step: u64) -> Result<Loaded, TrainError> {
    let place = place.into();
    let files = place.files();
    load(files, step).map_err(|reason| TrainError::Checkpoint { path: files.path(), step, reason })
}

/// The whole checkpoint with the best score; among equals the newest. Without scores, the newest.
pub fn load_best(place: impl Into<Place>, best: Best) -> Result<Option<Loaded>, TrainError> {
    let place = place.into();
    let files = place.files();
    let score = |step: u64| Manifest::read(files, step).ok().and_then(|m| m.score);
    let mut scored: Vec<(u64, Option<f64>)> = steps(files)?.into_iter().map(|s| (s, score(s))).collect();
    scored.sort_by(|a, b| best.compare(a.1, b.1));
    first_whole(files, scored.into_iter().map(|(step, _)| step).collect())
}

fn first_whole(files: &dyn Files, steps: Vec<u64>) -> Result<Option<Loaded>, TrainError> {
    let mut passed_over = Vec::new();
    for step in steps {
        match load(files, step) {
            Ok(loaded) => return Ok(Some(Loaded { passed_over, ..loaded })),
            Err(reason) => passed_over.push(format!("checkpoint of step {step} cannot be used: {reason}")),
        }
    }
    match passed_over.is_empty() {
        true => Ok(None),
        false => Err(TrainError::AllBroken { path: files.path(), reasons: passed_over }),
    }
}

fn load(files: &dyn Files, step: u64) -> Result<Loaded, String> {
    let manifest = Manifest::read(files, step).map_err(|e| format!("its manifest: {e}"))?;
    let mut parts = BTreeMap::new();
    for (name, part) in &manifest.parts {
        // Read, not mapped: the checksum is of the very bytes that become tensors.
        let bytes = part.read(files)?;
        let wrong = |reason: String| format!("{}: {reason}", part.file);
        let contents = safetensors::parse(&bytes).map_err(|e| wrong(e.to_string()))?;
        let tensors =
            contents.tensors.into_iter().map(|(n, t)| (n, Tensor::from_buffer(t.buffer, t.shape))).collect();
        parts.insert(name.clone(), tensors);
    }
    let Manifest { step, score, state, .. } = manifest;
    Ok(Loaded { step, score, state, parts: merge(parts), passed_over: Vec::new() })
}
