//! Who is the coordinator, what it remembers, and where the others find it.
//!
//! [`Embedded`]: one process, told at the start; it remembers in a file. `Etcd` (feature `etcd`): any of several
//! processes, chosen by election; it remembers in etcd, and the others watch who was chosen.

use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use crate::coordinator::Durable;
use crate::error::ClusterError;
use crate::wire::{Reader, Wire, Writer};

/// The way in which the processes of a cluster agree on a coordinator.
pub trait Membership: Send + Sync {
    /// Waits until this process, which listens at `address`, may be the coordinator. `None` when `end` is raised
    /// before.
    fn campaign(&self, address: &str, end: &AtomicBool) -> Result<Option<Box<dyn Memory>>, ClusterError>;

    /// Where the coordinator listens now, as far as is known here.
    fn coordinator(&self) -> Option<String>;

    /// Whether another one follows by itself when it has ended.
    fn elects(&self) -> bool {
        false
    }

    /// Why that is not known.
    fn problem(&self) -> Option<String> {
        None
    }
}

/// What a coordinator must remember over a crash, while it is the coordinator.
pub trait Memory: Send {
    /// What it, or whoever was the coordinator before, stored last.
    fn load(&mut self) -> Result<Option<Durable>, ClusterError>;

    /// Stores it. Refused when another process has become the coordinator.
    fn store(&mut self, durable: &Durable) -> Result<(), ClusterError>;

    /// Whether this process may still speak as the coordinator. When it may not, another one does, or soon will.
    fn leads(&self) -> bool;

    /// Gives up the place, so that nobody has to wait for the end of a lease.
    fn resign(&mut self) {}
}

/// One coordinator at a known address.
pub struct Embedded {
    address: String,
    file: Option<PathBuf>,
}

impl Embedded {
    /// The one at this address, which remembers in this file; without a file its death ends the run.
    pub fn new(address: impl Into<String>, file: Option<PathBuf>) -> Self {
        Self { address: address.into(), file }
    }
}

impl Membership for Embedded {
    fn campaign(&self, _address: &str, _end: &AtomicBool) -> Result<Option<Box<dyn Memory>>, ClusterError> {
        Ok(Some(Box::new(File(self.file.clone()))))
    }

    fn coordinator(&self) -> Option<String> {
        Some(self.address.clone())
    }
}

struct File(Option<PathBuf>);

impl Memory for File {
    fn load(&mut self) -> Result<Option<Durable>, ClusterError> {
        let Some(path) = self.0.as_deref().filter(|p| p.exists()) else { return Ok(None) };
        let bytes = std::fs::read(path).map_err(|e| wrong(path, e.to_string()))?;
        decode(&bytes).map(Some).map_err(|problem| wrong(path, problem))
    }

    fn store(&mut self, durable: &Durable) -> Result<(), ClusterError> {
        let Some(path) = &self.0 else { return Ok(()) };
        let write = || {
            let temporary = path.with_extension("new");
            std::fs::write(&temporary, encode(durable))?;
            std::fs::File::open(&temporary)?.sync_all()?;
            std::fs::rename(temporary, path)
        };
        write().map_err(|e: std::io::Error| wrong(path, e.to_string()))
    }

    fn leads(&self) -> bool {
        true
    }
}

fn wrong(path: &Path, problem: String) -> ClusterError {
    ClusterError::StateFile { path: path.display().to_string(), problem }
}

/// A checksum, then the text.
pub(super) fn encode(durable: &Durable) -> Vec<u8> {
    let mut w = Writer::default();
    durable.put(&mut w);
    let text = w.into_text();
    [&crc32fast::hash(&text).to_le_bytes()[..], &text].concat()
}

pub(super) fn decode(bytes: &[u8]) -> Result<Durable, String> {
    let (sum, text) = bytes.split_first_chunk::<4>().ok_or("it is too short")?;
    if crc32fast::hash(text) != u32::from_le_bytes(*sum) {
        return Err("its checksum is wrong; remove it to begin anew".into());
    }
    Durable::get(&mut Reader::new(text)).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinator::{Coordinator, Size};
    use crate::view::Timing;

    #[test]
    fn a_file_gives_back_what_it_was_given_and_a_changed_one_is_refused() {
        let path = std::env::temp_dir().join(format!("thalweg-view-{}", std::process::id()));
        let membership = Embedded::new("127.0.0.1:1", Some(path.clone()));
        let mut memory = membership.campaign("", &AtomicBool::new(false)).unwrap().unwrap();
        assert_eq!(memory.load().unwrap(), None);
        let size = Size { n_servers: 1, n_workers: 1, n_shards: Some(2), n_slots: 3, replicas: 1 };
        let durable = Coordinator::new(size, Timing::default(), Some(7), None).durable().clone();
        memory.store(&durable).unwrap();
        assert_eq!(memory.load().unwrap(), Some(durable));
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
        assert!(memory.load().unwrap_err().to_string().contains("checksum"));
        std::fs::remove_file(path).unwrap();
    }
}
