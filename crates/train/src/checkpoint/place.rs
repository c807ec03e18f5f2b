//! Where checkpoints lie: a folder, or anything else that holds bytes under names.

use std::fmt;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::error::TrainError;

/// Something that holds bytes under plain names.
pub trait Files: Send + Sync {
    /// All names; none when the place was never used.
    fn names(&self) -> Result<Vec<String>, TrainError>;
    /// The bytes of a name.
    fn read(&self, name: &str) -> Result<Vec<u8>, TrainError>;
    /// Puts bytes under a name. Nobody ever sees a part of them, and when it returns they outlive a crash.
    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), TrainError>;
    /// Removes a name, if it is there.
    fn remove(&self, name: &str) -> Result<(), TrainError>;
    /// Keeps others from writing until it is dropped; they are told who `holder` is. A place that cannot do so says
    /// [`Hold::Open`]; then what may be of another process is never removed.
    fn hold(&self, holder: &str) -> Result<Hold, TrainError>;
    /// The same, and from one of the same name who does not let go, be it that it was stopped: it has lost its place, and learns
    /// of that when it wakes.
    fn take_over(&self, holder: &str) -> Result<Hold, TrainError> {
        self.hold(holder)
    }
    /// How it is called in messages.
    fn path(&self) -> PathBuf;
}

/// A process's hold on a place.
#[derive(Debug)]
pub enum Hold {
    /// Nobody else writes.
    Sole(File),
    /// Others might.
    Open,
}

/// Where checkpoints lie. A path is one; so are the object stores of `thalweg-cluster`.
#[derive(Clone)]
pub struct Place(Arc<dyn Files>);

impl Place {
    /// Any other.
    pub fn new(files: impl Files + 'static) -> Self {
        Self(Arc::new(files))
    }

    pub(super) fn files(&self) -> &dyn Files {
        &*self.0
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Place({})", self.0.path().display())
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.path().display())
    }
}

macro_rules! paths {
    ($($t:ty)*) => {$(
        impl From<$t> for Place {
            fn from(path: $t) -> Self {
                Self::new(Folder(AsRef::<Path>::as_ref(&path).to_owned()))
            }
        }
    )*};
}
paths!(PathBuf &PathBuf &Path &str String);

impl From<&Place> for Place {
    fn from(place: &Place) -> Self {
        place.clone()
    }
}

struct Folder(PathBuf);

impl Files for Folder {
    fn names(&self) -> Result<Vec<String>, TrainError> {
        let entries = match fs::read_dir(&self.0) {
            Ok(entries) => entries,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(TrainError::io("list", &self.0)(e)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(TrainError::io("list", &self.0))?;
            names.extend(entry.file_name().into_string());
        }
        Ok(names)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, TrainError> {
        let path = self.0.join(name);
        fs::read(&path).map_err(TrainError::io("read", &path))
    }

    fn replace(&self, name: &str, bytes: &[u8]) -> Result<(), TrainError> {
        fs::create_dir_all(&self.0).map_err(TrainError::io("create", &self.0))?;
        Ok(thalweg_formats::replace(&self.0.join(name), |w| w.write_all(bytes))?)
    }

    fn remove(&self, name: &str) -> Result<(), TrainError> {
        let path = self.0.join(name);
        match fs::remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(TrainError::io("remove", &path)(e)),
            _ => Ok(()),
        }
    }

    fn hold(&self, holder: &str) -> Result<Hold, TrainError> {
        fs::create_dir_all(&self.0).map_err(TrainError::io("create", &self.0))?;
        let path = self.0.join(".lock");
        let lock = File::options().create(true).truncate(false).write(true).open(&path);
        let mut lock = lock.map_err(TrainError::io("open", &path))?;
        match lock.try_lock() {
            Ok(()) => {
                // On a full disk others do not learn who it is.
                let _ = lock.set_len(0).and_then(|()| lock.write_all(holder.as_bytes()));
                Ok(Hold::Sole(lock))
            }
            Err(fs::TryLockError::WouldBlock) => {
                let holder = fs::read_to_string(&path).unwrap_or_default();
                Err(TrainError::Locked { path: self.0.clone(), holder })
            }
            Err(fs::TryLockError::Error(e)) => Err(TrainError::io("lock", &path)(e)),
        }
    }

    fn take_over(&self, holder: &str) -> Result<Hold, TrainError> {
        match self.hold(holder) {
            // What it has locked is not there any more for others.
            Err(TrainError::Locked { holder: by, .. }) if by == holder => {
                let path = self.0.join(".lock");
                let new = self.0.join(format!(".lock-{}", std::process::id()));
                let take = || {
                    let mut lock = File::create(&new)?;
                    lock.try_lock()?;
                    lock.write_all(holder.as_bytes())?;
                    fs::rename(&new, &path)?;
                    Ok(Hold::Sole(lock))
                };
                take().map_err(TrainError::io("lock", &path))
            }
            held => held,
        }
    }

    fn path(&self) -> PathBuf {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_taken_over_from_a_peer_that_does_not_let_go_and_from_nobody_else() {
        let path = std::env::temp_dir().join(format!("thalweg-hold-{}", std::process::id()));
        let folder = Folder(path.clone());
        let is_locked = |hold: Result<Hold, TrainError>, by: &str| match hold {
            Err(TrainError::Locked { holder, .. }) => holder == by,
            _ => false,
        };
        let stopped = folder.hold("ours").unwrap();
        assert!(is_locked(folder.take_over("others"), "ours"));
        let successor = folder.take_over("ours").unwrap();
        assert!(is_locked(folder.hold("others"), "ours"));
        // It wakes, and lets go of what is not there any more.
        drop(stopped);
        assert!(is_locked(folder.hold("others"), "ours"));
        drop(successor);
        assert!(folder.hold("others").is_ok());
        fs::remove_dir_all(path).unwrap();
    }
}
