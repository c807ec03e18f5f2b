//! How far a run is beyond what it has written down, in a file of a few bytes that is written over at every step: whoever goes
//! on with the run in the middle reads there what was noted since the last line. It survives a process that is killed; with
//! a machine that stops, what it adds is lost.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

/// Step, number and sum of the losses, checksum.
const LEN: usize = 8 + 8 + 8 + 4;

/// A step of a run, with what is not written down yet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Mark {
    /// Steps that were made.
    pub step: u64,
    /// The losses since they were last written down: how many, and their sum.
    pub pending: (u64, f64),
}

impl Mark {
    /// What was last written, if it is whole.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        let bytes: [u8; LEN] = std::fs::read(path).ok()?.try_into().ok()?;
        let word = |i: usize| bytes[8 * i..][..8].try_into().expect("eight bytes");
        let whole = crc32fast::hash(&bytes[..24]).to_le_bytes() == bytes[24..];
        let pending = (u64::from_le_bytes(word(1)), f64::from_le_bytes(word(2)));
        whole.then_some(Self { step: u64::from_le_bytes(word(0)), pending })
    }

    /// Nothing is lost but some losses of a curve where it cannot be written.
    pub(crate) fn open(path: &Path) -> Option<File> {
        File::options().create(true).truncate(false).write(true).open(path).ok()
    }

    pub(crate) fn write(self, file: &mut File) {
        let Self { step, pending: (n, sum) } = self;
        let mut bytes = [step.to_le_bytes(), n.to_le_bytes(), sum.to_le_bytes()].concat();
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        // At once: half of a mark is none.
        let _ = file.seek(SeekFrom::Start(0)).and_then(|_| file.write(&bytes));
    }
}
