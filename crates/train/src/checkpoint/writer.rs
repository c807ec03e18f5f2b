//! Writing checkpoints on a thread of their own, and removing old ones.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::thread::JoinHandle;

use serde_json::Value;
use thalweg_core::Buffer;
use thalweg_formats::{Stored, safetensors};
use thalweg_tensor::Tensor;

use super::manifest::{Manifest, PartFile, part_name, remove_manifest, sha256, steps};
use super::place::{Files, Hold, Place};
use crate::error::TrainError;

/// Which score is best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Best {
    /// The lowest, such as a loss.
    Lowest,
    /// The highest, such as an accuracy.
    Highest,
}

impl Best {
    /// The better one first; a missing score is worse than any.
    pub(super) fn compare(self, a: Option<f64>, b: Option<f64>) -> Ordering {
        match (a, b) {
            (Some(a), Some(b)) if self == Best::Lowest => a.total_cmp(&b),
            (Some(a), Some(b)) => b.total_cmp(&a),
            (a, b) => b.is_some().cmp(&a.is_some()),
        }
    }
}

/// Which checkpoints stay.
#[derive(Debug, Clone)]
pub struct Keep {
    /// The newest so many; at least 1. With 2 or more there is one to fall back to.
    pub last: usize,
    /// The best one too.
    pub best: Option<Best>,
    /// Parts that are saved at most every so many steps; in between, checkpoints name their last file. For large
    /// tables of which little changes. A run that resumes gets the older values of such a part.
    pub intervals: BTreeMap<String, u64>,
}

impl Default for Keep {
    fn default() -> Self {
        Self { last: 3, best: None, intervals: BTreeMap::new() }
    }
}

/// What is to be saved.
#[derive(Debug, Clone)]
pub struct Snapshot {
    step: u64,
    score: Option<f64>,
    state: Value,
    parts: BTreeMap<String, Vec<(String, Tensor)>>,
}

impl Snapshot {
    /// The state after a step: epoch, data position, random numbers, schedule, whatever resuming needs.
    pub fn new(step: u64, state: Value) -> Self {
        Self { step, score: None, state, parts: BTreeMap::new() }
    }

    /// How good it is, for [`Keep::best`].
    pub fn score(mut self, score: f64) -> Self {
        self.score = Some(score);
        self
    }

    /// Named tensors, such as a model's or an optimiser's.
    pub fn part<N: Into<String>>(
        mut self,
        name: &str,
        tensors: impl IntoIterator<Item = (N, Tensor)>,
    ) -> Self {
        self.parts.insert(name.to_owned(), tensors.into_iter().map(|(n, t)| (n.into(), t)).collect());
        self
    }
}

/// The checkpoints of a run that is being trained. One process writes them at a time.
///
/// ```
/// use serde_json::json;
/// use thalweg_tensor::Tensor;
/// use thalweg_train::{Checkpoints, Keep, Snapshot, load_latest};
/// let dir = std::env::temp_dir().join(format!("thalweg-checkpoint-doc-{}", std::process::id()));
/// let mut checkpoints = Checkpoints::open(&dir, Keep::default())?;
/// let weights = [("w", Tensor::from([1.0f32, 2.0]))];
/// checkpoints.save(Snapshot::new(100, json!({"epoch": 1})).part("model", weights))?;
/// checkpoints.flush()?;
///
/// let loaded = load_latest(&dir)?.unwrap();
/// assert_eq!((loaded.step, &loaded.state["epoch"]), (100, &json!(1)));
/// assert_eq!(loaded.parts["model"]["w"].to_vec::<f32>(), [1.0, 2.0]);
/// # drop(checkpoints);
/// # std::fs::remove_dir_all(dir).unwrap();
/// # Ok::<(), thalweg_train::TrainError>(())
/// ```
pub struct Checkpoints {
    /// At home when nothing is being written.
    store: Option<Store>,
    writing: Option<JoinHandle<(Store, Result<(), TrainError>)>>,
}

/// What the writing thread needs: lent to it for the time of one checkpoint.
struct Store {
    place: Place,
    keep: Keep,
    /// Whether other processes write parts of checkpoints too.
    shared: bool,
    /// Checkpoints of this step and newer ones stay; without it, as many as are to be kept.
    kept_from: Option<u64>,
    /// The newest file of each part.
    parts: BTreeMap<String, PartFile>,
    /// Held as long as this process may write.
    hold: Hold,
}

impl Checkpoints {
    /// Opens or makes a place for checkpoints, and removes what a killed process left unfinished.
    pub fn open(place: impl Into<Place>, keep: Keep) -> Result<Self, TrainError> {
        let place = place.into();
        let hold = place.files().hold(&format!("process {}", std::process::id()))?;
        Self::open_as(place, keep, hold, false)
    }

    /// The same, for checkpoints whose shards other processes write: those of steps that are not complete yet are left
    /// alone, and so are all that are complete until [`Checkpoints::keep_from`] tells otherwise. `holder` is who these processes
    /// are together, so that each can tell a peer that holds the place from a stranger.
    pub fn open_shared(place: impl Into<Place>, keep: Keep, holder: &str) -> Result<Self, TrainError> {
        let place = place.into();
        let hold = place.files().hold(holder)?;
        Self::open_as(place, keep, hold, true)
    }

    /// The same, and from a peer that does not let go.
    pub fn take_over_shared(place: impl Into<Place>, keep: Keep, holder: &str) -> Result<Self, TrainError> {
        let place = place.into();
        let hold = place.files().take_over(holder)?;
        Self::open_as(place, keep, hold, true)
    }

    fn open_as(place: Place, keep: Keep, hold: Hold, shared: bool) -> Result<Self, TrainError> {
        let found = steps(place.files())?;
        let newest = found.iter().find_map(|s| Manifest::read(place.files(), *s).ok());
        let mut parts = newest.map(|m| m.parts).unwrap_or_default();
        // What is to be named again must be whole; the others will be written anew.
        parts.retain(|name, part| keep.intervals.contains_key(name) && part.is_whole(place.files()));
        let store = Store { place, keep, shared, kept_from: shared.then_some(0), parts, hold };
        store.remove_strays(found.first().copied().unwrap_or(0))?;
        Ok(Self { store: Some(store), writing: None })
    }

    /// Copies the tensors and writes them in the background. Waits only for the checkpoint before it, whose error, if
    /// it had one, is returned here; then nothing new is written.
    pub fn save(&mut self, snapshot: Snapshot) -> Result<(), TrainError> {
        for name in snapshot.parts.keys() {
            let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
            if name.is_empty() || !name.chars().all(plain) {
                return Err(TrainError::PartName { name: name.clone() });
            }
        }
        self.flush()?;
        let mut store = self.store.take().ok_or(TrainError::Writer)?;
        let job = store.plan(snapshot);
        let write = move || {
            let outcome = store.write(job);
            (store, outcome)
        };
        let thread = std::thread::Builder::new().name("thalweg-checkpoint".into());
        self.writing = Some(thread.spawn(write).map_err(|_| TrainError::Writer)?);
        Ok(())
    }

    /// Checkpoints of this step and newer ones stay, however many there are: somebody may ask for any of them.
    pub fn keep_from(&mut self, step: u64) {
        if let Some(store) = &mut self.store {
            store.kept_from = Some(step);
        }
    }

    /// Waits until the last checkpoint is on disk, and says how it went.
    pub fn flush(&mut self) -> Result<(), TrainError> {
        let Some(thread) = self.writing.take() else { return Ok(()) };
        let (store, outcome) = thread.join().map_err(|_| TrainError::Writer)?;
        self.store = Some(store);
        outcome
    }

    /// Removes what there is of checkpoints that will never be whole, since nobody writes any more; nothing where another process
    /// might.
    pub fn give_up(&mut self) -> Result<(), TrainError> {
        self.flush()?;
        let sole = self.store.as_ref().filter(|store| matches!(store.hold, Hold::Sole(_)));
        sole.map_or(Ok(()), |store| store.remove_strays(u64::MAX))
    }

    /// Where they lie.
    pub(super) fn files(&self) -> Result<&dyn Files, TrainError> {
        self.store.as_ref().map(Store::files).ok_or(TrainError::Writer)
    }

    /// Whether nobody else writes here.
    pub(super) fn is_sole(&self) -> Result<bool, TrainError> {
        self.store.as_ref().map(|s| matches!(s.hold, Hold::Sole(_))).ok_or(TrainError::Writer)
    }

    /// Writes the manifest of files that others have written, and one more part.
    pub(super) fn finish(
        &mut self,
        step: u64,
        state: Value,
        reused: BTreeMap<String, PartFile>,
        (name, tensors): (&str, Vec<(String, Tensor)>),
    ) -> Result<(), TrainError> {
        let store = self.store.as_mut().ok_or(TrainError::Writer)?;
        let copies = tensors.into_iter().map(|(n, t)| (n, copy(&t))).collect();
        let fresh = BTreeMap::from([(name.to_owned(), copies)]);
        store.write(Job { step, score: None, state, fresh, reused })
    }
}

impl Drop for Checkpoints {
    /// What was begun is finished. Call [`Checkpoints::flush`] to learn of errors.
    fn drop(&mut self) {
        let _ = self.flush();
    }
}

/// A checkpoint that is to be written: copies, so that training may go on.
struct Job {
    step: u64,
    score: Option<f64>,
    state: Value,
    fresh: BTreeMap<String, Vec<(String, Stored)>>,
    reused: BTreeMap<String, PartFile>,
}

impl Store {
    fn files(&self) -> &dyn Files {
        self.place.files()
    }

    /// Decides which parts are due, and copies those.
    fn plan(&self, snapshot: Snapshot) -> Job {
        let Snapshot { step, score, state, parts } = snapshot;
        let (mut fresh, mut reused) = (BTreeMap::new(), BTreeMap::new());
        for (name, tensors) in parts {
            let interval = self.keep.intervals.get(&name).copied().unwrap_or(0);
            match self.parts.get(&name) {
                Some(old) if old.step <= step && step - old.step < interval => {
                    reused.insert(name, old.clone());
                }
                _ => {
                    let copies = tensors.into_iter().map(|(n, t)| (n, copy(&t))).collect();
                    fresh.insert(name, copies);
                }
            }
        }
        Job { step, score, state, fresh, reused }
    }

    /// Writes a checkpoint. Of one that cannot be written nothing stays: where there is no room, half of it would take some.
    fn write(&mut self, job: Job) -> Result<(), TrainError> {
        let mut written = Vec::new();
        let outcome = self.write_noting(job, &mut written);
        if outcome.is_err() {
            // What went wrong is told; that something stays then is not worth telling.
            let _ = self.remove_unnamed(|name| written.iter().any(|w| w == name));
        }
        outcome
    }

    fn write_noting(&mut self, job: Job, written: &mut Vec<String>) -> Result<(), TrainError> {
        let mut parts = job.reused;
        for (name, tensors) in job.fresh {
            let file = part_name(job.step, &name);
            let bytes = safetensors::encode(tensors.iter().map(|(n, t)| (n.as_str(), t)), &BTreeMap::new())?;
            self.files().replace(&file, &bytes)?;
            written.push(file.clone());
            let entry = PartFile { file, step: job.step, bytes: bytes.len() as u64, sha256: sha256(&bytes) };
            parts.insert(name, entry);
        }
        let manifest = Manifest::new(job.step, job.score, job.state, parts.clone());
        manifest.write(self.files())?;
        self.parts.extend(parts);
        self.retire(job.step)
    }

    /// Removes the checkpoints that need not stay, manifests first. Those after the newest one are of a run that was
    /// taken back to an earlier step; or, where others might write, of a process that has overtaken this one.
    fn retire(&self, newest: u64) -> Result<(), TrainError> {
        let all: Vec<(u64, Option<Manifest>)> = steps(self.files())?
            .into_iter()
            .filter(|s| *s <= newest || matches!(self.hold, Hold::Sole(_)) && !self.shared)
            .map(|s| (s, Manifest::read(self.files(), s).ok()))
            .collect();
        let usable = || all.iter().filter_map(|(s, m)| Some((*s, m.as_ref()?))).filter(|(s, _)| *s <= newest);
        let mut stay: BTreeSet<u64> = usable().map(|(s, _)| s).take(self.keep.last.max(1)).collect();
        if let Some(best) = self.keep.best {
            let scored = usable().filter_map(|(s, m)| Some((s, m.score?)));
            stay.extend(scored.min_by(|a, b| best.compare(Some(a.1), Some(b.1))).map(|(s, _)| s));
        }
        let wanted = |s: u64| s <= newest && self.kept_from.is_some_and(|from| s >= from);
        for (step, _) in all.iter().filter(|(s, _)| !stay.contains(s) && !wanted(*s)) {
            remove_manifest(self.files(), *step)?;
        }
        self.remove_strays(newest)
    }

    /// Removes part files that no manifest names, and unfinished files; where others write too, only parts up to the newest
    /// step.
    fn remove_strays(&self, newest: u64) -> Result<(), TrainError> {
        // Of several writers, each finishes its own.
        let names = if self.shared { Vec::new() } else { self.files().names()? };
        for name in names.iter().filter(|name| name.starts_with(".thalweg-") && name.ends_with(".tmp")) {
            self.files().remove(name)?;
        }
        self.remove_unnamed(|name| {
            let step = name.strip_prefix("step-").and_then(|n| n.get(..10)?.parse::<u64>().ok());
            let old = step.is_some_and(|s| !self.shared || s <= newest);
            old && (name.ends_with(".safetensors") || name.ends_with(".list"))
        })
    }

    /// Removes those of some files that no manifest names. While a manifest cannot be read nobody knows what it names, so then
    /// all stay.
    fn remove_unnamed(&self, is_meant: impl Fn(&str) -> bool) -> Result<(), TrainError> {
        let mut named = BTreeSet::new();
        for step in steps(self.files())? {
            let Ok(manifest) = Manifest::read(self.files(), step) else { return Ok(()) };
            named.extend(manifest.parts.into_values().map(|p| p.file));
        }
        for name in self.files().names()?.iter().filter(|name| is_meant(name) && !named.contains(*name)) {
            self.files().remove(name)?;
        }
        Ok(())
    }
}

pub(super) fn copy(t: &Tensor) -> Stored {
    let t = t.contiguous();
    let mut buffer = Buffer::scratch(t.dtype(), t.numel());
    thalweg_core::with_dtype!(t.dtype(), T => {
        buffer.as_mut_slice::<T>().copy_from_slice(t.as_slice::<T>().expect("made contiguous above"));
    });
    Stored { buffer, shape: t.shape().clone() }
}
