//! Checkpoints that many processes write together: each its shard, then one of them the manifest.
//!
//! Shard `k` writes its tensors of a part as a part of its own, called `<part>-<k>`, and last of all a list of these
//! files. When the lists of all shards are there, the manifest is written from them. Whoever loads finds the parts
//! put together, so one process can go on from what many wrote, and the other way round.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use thalweg_tensor::Tensor;

use super::manifest::{PartFile, part_name, remove_manifest, sha256, steps};
use super::place::{Files, Place};
use super::writer::{Checkpoints, copy};
use crate::error::TrainError;

/// The named tensors of each part.
pub type ShardParts = BTreeMap<String, Vec<(String, Tensor)>>;

/// Writes one shard of the checkpoint of a step, all of it or nothing. The place is made when it is not there.
pub fn save_shard(
    place: impl Into<Place>,
    step: u64,
    shard: u32,
    parts: ShardParts,
) -> Result<(), TrainError> {
    let place = place.into();
    let mut files: BTreeMap<String, PartFile> = BTreeMap::new();
    let written = write_shard(place.files(), step, shard, parts, &mut files);
    // Another server may have written this shard before, and its list names the same files.
    if let Err(e) = &written
        && place.files().read(&list_name(step, shard)).is_err()
    {
        files.values().for_each(|part| drop(place.files().remove(&part.file)));
        // Where there is room for a line at least, nobody waits for it.
        let list = serde_json::to_vec(&List::Failed { failed: e.to_string() });
        let _ = place.files().replace(&list_name(step, shard), &list.expect("words are always JSON"));
    }
    written
}

/// What a shard says of its part of a checkpoint, once it is done with it.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum List {
    Failed { failed: String },
    Files(BTreeMap<String, PartFile>),
}

fn list(files: &dyn Files, step: u64, shard: u32) -> Option<List> {
    serde_json::from_slice(&files.read(&list_name(step, shard)).ok()?).ok()
}

/// Notes the files that are there.
fn write_shard(
    place: &dyn Files,
    step: u64,
    shard: u32,
    parts: ShardParts,
    files: &mut BTreeMap<String, PartFile>,
) -> Result<(), TrainError> {
    for (part, tensors) in parts {
        let name = format!("{part}-{shard}");
        let file = part_name(step, &name);
        let stored: Vec<_> = tensors.iter().map(|(n, t)| (n, copy(t))).collect();
        let tensors = stored.iter().map(|(n, t)| (n.as_str(), t));
        let bytes = thalweg_formats::safetensors::encode(tensors, &BTreeMap::new())?;
        place.replace(&file, &bytes)?;
        files.insert(name, PartFile { file, step, bytes: bytes.len() as u64, sha256: sha256(&bytes) });
    }
    let text = serde_json::to_vec(files).expect("a list of files is always JSON");
    place.replace(&list_name(step, shard), &text)
}

fn list_name(step: u64, shard: u32) -> String {
    format!("step-{step:010}.shard-{shard}.list")
}

/// The files that the shards have written, if all have.
fn lists(files: &dyn Files, step: u64, n_shards: u32) -> Option<BTreeMap<String, PartFile>> {
    let written = |shard| match list(files, step, shard)? {
        List::Files(files) => Some(files),
        List::Failed { .. } => None,
    };
    (0..n_shards).map(written).collect::<Option<Vec<_>>>().map(|l| l.into_iter().flatten().collect())
}

impl Checkpoints {
    /// Writes the manifest of a step whose shards are all there, with one more part of its own; says whether they
    /// are. Removes what is older than the checkpoints that stay.
    pub fn complete(
        &mut self,
        step: u64,
        state: Value,
        n_shards: u32,
        own: (&str, Vec<(String, Tensor)>),
    ) -> Result<bool, TrainError> {
        self.flush()?;
        let Some(parts) = lists(self.files()?, step, n_shards) else { return Ok(false) };
        // The lists have done their work then, and are removed with what else no manifest names.
        self.finish(step, state, parts, own)?;
        Ok(true)
    }

    /// Whether a shard of the checkpoint of a step could not be written, so that it will never be complete.
    pub fn has_failed(&self, step: u64, n_shards: u32) -> Result<bool, TrainError> {
        let files = self.files()?;
        Ok((0..n_shards).any(|shard| matches!(list(files, step, shard), Some(List::Failed { .. }))))
    }

    /// Forgets what was written after a step: the run was taken back to it and writes that again. What shards have written
    /// before and after must not make one checkpoint. Manifests stay where another process may have written them.
    pub fn forget_after(&mut self, step: u64) -> Result<(), TrainError> {
        self.flush()?;
        let sole = self.is_sole()?;
        let files = self.files()?;
        for later in steps(files)?.into_iter().filter(|s| *s > step && sole) {
            remove_manifest(files, later)?;
        }
        for name in files.names()? {
            let of = name.strip_prefix("step-").and_then(|n| n.get(..10)?.parse::<u64>().ok());
            if name.ends_with(".list") && of.is_some_and(|s| s > step) {
                files.remove(&name)?;
            }
        }
        Ok(())
    }
}

/// Puts the parts `<part>-<k>` of all shards together as `<part>`.
pub(super) fn merge(
    parts: BTreeMap<String, BTreeMap<String, Tensor>>,
) -> BTreeMap<String, BTreeMap<String, Tensor>> {
    let mut merged: BTreeMap<String, BTreeMap<String, Tensor>> = BTreeMap::new();
    for (name, tensors) in parts {
        let whole = match name.rsplit_once('-') {
            Some((part, shard)) if shard.parse::<u32>().is_ok() => part.to_owned(),
            _ => name,
        };
        merged.entry(whole).or_default().extend(tensors);
    }
    merged
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::checkpoint::{Keep, load_latest, load_step};

    fn shard(names: &[(&str, f32)]) -> ShardParts {
        let tensors = names.iter().map(|(n, v)| ((*n).to_owned(), Tensor::from([*v]))).collect();
        ShardParts::from([("model".to_owned(), tensors)])
    }

    #[test]
    fn what_was_written_before_a_run_was_taken_back_makes_no_checkpoint_with_what_comes_after() {
        let folder = std::env::temp_dir().join(format!("thalweg-back-{}", std::process::id()));
        let mut checkpoints = Checkpoints::open_shared(&folder, Keep::default(), "a test").unwrap();
        let mut both = |step, value: f32| {
            save_shard(&folder, step, 0, shard(&[("a", value)])).unwrap();
            save_shard(&folder, step, 1, shard(&[("b", value)])).unwrap();
            checkpoints.complete(step, json!({}), 2, ("noise", Vec::new())).unwrap()
        };
        assert!(both(10, 1.0) && both(20, 1.0));
        save_shard(&folder, 30, 0, shard(&[("a", 1.0)])).unwrap();
        checkpoints.forget_after(10).unwrap();
        assert_eq!(load_latest(&folder).unwrap().unwrap().step, 10);
        assert_eq!(load_step(&folder, 10).unwrap().step, 10);
        assert!(load_step(&folder, 20).is_err());
        save_shard(&folder, 30, 1, shard(&[("b", 2.0)])).unwrap();
        assert!(
            !checkpoints.complete(30, json!({}), 2, ("noise", Vec::new())).unwrap(),
            "shard 0 is of before"
        );
        drop(checkpoints);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_checkpoint_of_shards_is_there_when_all_are_and_loads_as_one() {
        let folder = std::env::temp_dir().join(format!("thalweg-shards-{}", std::process::id()));
        let mut checkpoints = Checkpoints::open_shared(&folder, Keep::default(), "a test").unwrap();
        let own = || ("noise", vec![("n".to_owned(), Tensor::from([7.0f32]))]);
        save_shard(&folder, 10, 1, shard(&[("b", 2.0)])).unwrap();
        assert!(!checkpoints.complete(10, json!({}), 2, own()).unwrap(), "shard 0 is missing");
        assert!(load_latest(&folder).unwrap().is_none());
        save_shard(&folder, 10, 0, shard(&[("a", 1.0), ("c", 3.0)])).unwrap();
        save_shard(&folder, 20, 0, shard(&[("a", 9.0)])).unwrap();
        assert!(checkpoints.complete(10, json!({"at": 10}), 2, own()).unwrap());
        let loaded = load_latest(&folder).unwrap().unwrap();
        let names: Vec<&String> = loaded.parts["model"].keys().collect();
        assert_eq!(loaded.step, 10);
        assert_eq!(names, ["a", "b", "c"]);
        assert_eq!(loaded.parts["noise"]["n"].to_vec::<f32>(), [7.0]);
        // What belongs to a checkpoint to come was left alone.
        save_shard(&folder, 20, 1, shard(&[("b", 9.0)])).unwrap();
        assert!(checkpoints.complete(20, json!({}), 2, own()).unwrap());
        assert_eq!(load_latest(&folder).unwrap().unwrap().step, 20);
        drop(checkpoints);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
