//! Memory-mapped files. The only `unsafe` code of this crate.
#![allow(unsafe_code, reason = "mapping a file is a promise that the compiler cannot check")]

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;

use crate::error::{Action, FormatError};

/// The bytes of a file, mapped read-only and shared by every tensor lent from it.
#[derive(Clone)]
pub(crate) struct Mapped(Arc<Mmap>);

impl Mapped {
    /// Maps a whole regular file. The file must not change while any clone of the result lives, see
    /// the crate documentation.
    pub(crate) fn open(path: &Path) -> Result<Self, FormatError> {
        let failed = |action| move |source| FormatError::Io { action, path: path.to_owned(), source };
        // Before opening: a pipe without a writer would block for ever.
        if !fs::metadata(path).map_err(failed(Action::Open))?.is_file() {
            return Err(FormatError::NotAFile { path: path.to_owned() });
        }
        let file = File::open(path).map_err(failed(Action::Open))?;
        // SAFETY: the mapping is read-only and private to this process, and nothing in this crate
        // writes into an existing file: `replace` renames a new one into place, which leaves the mapped
        // inode as it was. That no other program changes or truncates the file is the promise of
        // whoever calls `open` or `read`; the crate documentation and both functions state it.
        let map = unsafe { Mmap::map(&file) }.map_err(failed(Action::Map))?;
        Ok(Self(Arc::new(map)))
    }
}

impl AsRef<[u8]> for Mapped {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_file_is_not_mapped() {
        assert!(matches!(Mapped::open(&std::env::temp_dir()), Err(FormatError::NotAFile { .. })));
        let missing = std::env::temp_dir().join("thalweg-no-such-file");
        assert!(matches!(Mapped::open(&missing), Err(FormatError::Io { action: Action::Open, .. })));
    }
}
