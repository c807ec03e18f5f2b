//! The data plane: a fixed header, the text of a message, then arrays as raw aligned values.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | `THWG` |
//! | 4..8 | version of the protocol |
//! | 8..12 | number of arrays |
//! | 12..16 | length of the text |
//! | 16..24 | bytes of all arrays |
//! | 24..28 | CRC-32 of the lengths and the text |
//! | 28 | lane |
//! | 29..32 | number of the frame on its lane of this connection, modulo 2²⁴ |
//! | 32..40 | number of the call that it answers; 0 when it is no answer |
//! | 40..44 | CRC-32 of the header up to here |
//!
//! Then one `u64` per array, its number of values; the text. The arrays follow in chunks ([`chunks`]), between
//! which frames of other lanes may pass. They leave straight from parameter memory and arrive in the memory where
//! they stay: that is why an answer names its call before anything is received. All numbers are little-endian.
//!
//! Every byte is covered by a checksum, but for values in shared memory, which never leave this host's. That of a header is
//! looked at first: no length is believed that may have been changed, so nobody waits for bytes that were never sent. A
//! checksum that is wrong ends the connection; what was on it is sent again, as after any other end.
//!
//! A frame that comes again on a connection, or out of its order, does not have the number that is due, and ends the
//! connection. Another connection begins with a proof over fresh random numbers, which cannot be repeated.

pub mod chunks;
mod codec;
mod keys;
mod messages;

pub use chunks::{Incoming, Lanes};
pub use codec::{Reader, Wire, WireError, Writer};
pub use keys::KeySets;

use std::collections::BTreeMap;
use std::io::{self, Read, Write};

use codec::Array;

use crate::ids::{CallId, Peer};
use crate::message::Data;

/// The bytes of a header.
pub const HEADER: usize = 44;
/// So many of them are covered by the checksum that is the last.
const SIGNED: usize = HEADER - 4;
const MAGIC: [u8; 4] = *b"THWG";
/// Of the protocol.
pub const VERSION: u32 = 6;
/// Frames are counted up to this.
const NUMBERS: u32 = 1 << 24;

/// What a frame may claim at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of text.
    pub text: u32,
    /// Arrays.
    pub arrays: u32,
    /// Bytes of all arrays.
    pub data: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { text: 256 << 20, arrays: 1 << 24, data: 8 << 30 }
    }
}

/// Frames of one lane stay in order; a frame of a lower lane goes first, even between two chunks of another.
/// The first shards hold the first of the dense tables.
fn lane(message: &Data) -> u8 {
    (message.shard().0 % 256) as u8
}

/// The call that a message answers; calls are counted from one.
fn answers(message: &Data) -> CallId {
    if let Data::Answer(answer) = message { answer.id } else { CallId::default() }
}

/// What one side has sent over a lane of a connection, and the other side has got.
#[derive(Debug, Default)]
pub struct Past {
    keys: KeySets,
    n_frames: u32, // modulo NUMBERS
}

impl Past {
    /// The number of the next frame, which has come or is about to be sent.
    fn count(&mut self) -> u32 {
        let number = self.n_frames;
        self.n_frames = (number + 1) % NUMBERS;
        number
    }
}

/// A message ready to be sent: its bytes, and the arrays that follow them.
#[derive(Debug)]
pub struct Frame {
    lane: u8,
    head: Vec<u8>,
    arrays: Vec<Array>,
}

impl Frame {
    /// The frame of a message from this peer, over a connection on which nothing was sent before.
    pub fn new(from: Peer, message: &Data) -> Self {
        Self::after(&mut BTreeMap::new(), from, message)
    }

    /// The frame of a message from this peer, after others over the same connection, by lane.
    pub fn after(sent: &mut BTreeMap<u8, Past>, from: Peer, message: &Data) -> Self {
        let lane = lane(message);
        let past = sent.entry(lane).or_default();
        let mut w = Writer { keys: std::mem::take(&mut past.keys), ..Writer::default() };
        from.put(&mut w);
        message.put(&mut w);
        let Writer { text, arrays, keys } = w;
        past.keys = keys;
        let mut head = Vec::with_capacity(HEADER + 8 * arrays.len() + text.len());
        head.extend(MAGIC);
        head.extend(VERSION.to_le_bytes());
        head.extend((arrays.len() as u32).to_le_bytes());
        head.extend((text.len() as u32).to_le_bytes());
        head.extend(arrays.iter().map(|a| 4 * a.values().len() as u64).sum::<u64>().to_le_bytes());
        head.extend([0; 4]);
        head.extend((u32::from(lane) | past.count() << 8).to_le_bytes());
        head.extend(answers(message).0.to_le_bytes());
        head.extend([0; 4]);
        arrays.iter().for_each(|a| head.extend((a.values().len() as u64).to_le_bytes()));
        head.extend(text);
        sign(&mut head);
        Self { lane, head, arrays }
    }

    /// How many bytes it has, without the headers of its chunks.
    pub fn len(&self) -> usize {
        self.head.len() + self.arrays.iter().map(|a| 4 * a.values().len()).sum::<usize>()
    }

    /// Never: there is always a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes all of it.
    pub fn write(self, to: &mut impl Write) -> io::Result<()> {
        let mut lanes = Lanes::default();
        lanes.add(self);
        while !lanes.is_empty() {
            lanes.write(to)?;
        }
        Ok(())
    }
}

/// Reads one message, the first on a connection. `None` is an end between two frames.
pub fn read(from: &mut impl Read, limits: &Limits) -> io::Result<Option<(Peer, Data)>> {
    Incoming::new(*limits).read(from)
}

/// What a header says, within the limits.
struct Claimed {
    lane: u8,
    number: u32,
    answers: CallId,
    arrays: usize,
    text: usize,
    data: u64,
    checksum: u32,
}

impl Claimed {
    fn new(header: &[u8; HEADER], limits: &Limits) -> Result<Self, WireError> {
        let u32_at = |i: usize| u32_at(header, i);
        let u64_at = |i: usize| u64::from_le_bytes(header[i..i + 8].try_into().expect("eight bytes"));
        let (data, answers) = (u64_at(16), CallId(u64_at(32)));
        if header[..4] != MAGIC {
            return Err(WireError::Unknown { what: "header", got: u32_at(0).into() });
        }
        if u32_at(4) != VERSION {
            return Err(WireError::Unknown { what: "version", got: u32_at(4).into() });
        }
        compare(u32_at(SIGNED), crc32fast::hash(&header[..SIGNED]))?;
        let (lane, number) = (header[28], u32_at(28) >> 8);
        let [arrays, text] = [u32_at(8), u32_at(12)];
        let claims = [
            ("list of arrays", 8 * u64::from(arrays), 8 * u64::from(limits.arrays)),
            ("text", text.into(), limits.text.into()),
            ("data", data, limits.data),
        ];
        for (what, got, most) in claims {
            if got > most {
                return Err(WireError::Large { what, got, most });
            }
        }
        let (arrays, text, checksum) = (arrays as usize, text as usize, u32_at(24));
        Ok(Self { lane, number, answers, arrays, text, data, checksum })
    }

    /// The lengths of the arrays, once the checksum is right and they add up to what was claimed.
    fn check(&self, rest: &[u8]) -> Result<Vec<usize>, WireError> {
        compare(self.checksum, crc32fast::hash(rest))?;
        let lens = rest[..8 * self.arrays].chunks_exact(8);
        let lens: Vec<u64> = lens.map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes"))).collect();
        let total = lens.iter().try_fold(0u64, |sum, len| sum.checked_add(len.checked_mul(4)?));
        if total != Some(self.data) {
            return Err(WireError::Unknown { what: "sum of array lengths", got: self.data });
        }
        Ok(lens.into_iter().map(|len| len as usize).collect())
    }
}

fn u32_at(bytes: &[u8], i: usize) -> u32 {
    u32::from_le_bytes(bytes[i..i + 4].try_into().expect("four bytes"))
}

fn compare(want: u32, got: u32) -> Result<(), WireError> {
    if want == got { Ok(()) } else { Err(WireError::Checksum { want, got }) }
}

/// Writes the checksums of the head of a frame: that of the lengths and the text, then that of the header with it.
fn sign(head: &mut [u8]) {
    let (header, rest) = head.split_at_mut(HEADER);
    header[24..28].copy_from_slice(&crc32fast::hash(rest).to_le_bytes());
    let sum = crc32fast::hash(&header[..SIGNED]);
    header[SIGNED..].copy_from_slice(&sum.to_le_bytes());
}

/// Makes the checksums of frames and chunks right, as far as their headers tell where they are: for tests that change bytes.
pub fn seal(mut bytes: &mut [u8]) {
    loop {
        let extent = chunks::extent(bytes);
        if extent == 0 {
            return;
        }
        let (this, rest) = bytes.split_at_mut(extent.min(bytes.len()));
        match (this.starts_with(&MAGIC), this.len()) {
            (true, HEADER..) => sign(this),
            (true, _) => return,
            (false, _) => chunks::sign(this),
        }
        bytes = rest;
    }
}

#[cfg(test)]
mod tests;
