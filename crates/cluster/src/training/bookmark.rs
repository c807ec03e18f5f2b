//! How far the books are, in a file of a few bytes that is written over at every step: whoever takes them over reads there
//! what was noted since the last checkpoint. It survives a process that is killed; with a machine that stops, what it adds is lost.

use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

const NAME: &str = "bookmark";
/// Step, number and sum of the losses, checksum.
const LEN: usize = 8 + 8 + 8 + 4;

/// A step, and the losses since they were last written down: how many, and their sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Mark {
    pub step: u64,
    pub pending: (u64, f64),
}

pub(super) struct Bookmark(File);

impl Bookmark {
    /// Nothing is lost but some losses of a curve where it cannot be written.
    pub fn open(folder: &Path) -> Option<Self> {
        File::options().create(true).truncate(false).write(true).open(folder.join(NAME)).ok().map(Self)
    }

    pub fn set(&mut self, mark: Mark) {
        let Mark { step, pending: (n, sum) } = mark;
        let mut bytes = [step.to_le_bytes(), n.to_le_bytes(), sum.to_le_bytes()].concat();
        bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
        // At once: half of a mark is none.
        let _ = self.0.seek(SeekFrom::Start(0)).and_then(|_| self.0.write(&bytes));
    }

    /// What was last set, if it is whole.
    pub fn read(folder: &Path) -> Option<Mark> {
        let bytes: [u8; LEN] = std::fs::read(folder.join(NAME)).ok()?.try_into().ok()?;
        let word = |i: usize| bytes[8 * i..][..8].try_into().expect("eight bytes");
        let whole = crc32fast::hash(&bytes[..24]).to_le_bytes() == bytes[24..];
        let pending = (u64::from_le_bytes(word(1)), f64::from_le_bytes(word(2)));
        whole.then_some(Mark { step: u64::from_le_bytes(word(0)), pending })
    }
}
