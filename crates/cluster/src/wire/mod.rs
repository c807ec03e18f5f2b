//! The data plane: a fixed header, the text of a message, then arrays as raw aligned values.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | `THWG` |
//! | 4..8 | version of the protocol |
//! | 8..12 | number of arrays |
//! | 12..16 | length of the text |
//! | 16..24 | bytes of all arrays |
//! | 24..28 | CRC-32 of the rest of the header, the lengths and the text |
//! | 28..32 | zero |
//!
//! Then one `u64` per array, its number of values; the text; the arrays. Arrays leave straight from
//! parameter memory and arrive in memory of their own. All numbers are little-endian.

mod codec;
mod messages;

pub use codec::{Reader, Wire, WireError, Writer};

use std::collections::VecDeque;
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;

use crate::ids::Peer;
use crate::message::Message;
use crate::table::Values;

/// The bytes of a header.
pub const HEADER: usize = 32;
const MAGIC: [u8; 4] = *b"THWG";
const VERSION: u32 = 1;

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

/// A message ready to be sent: its bytes, and the arrays that follow them.
#[derive(Debug, Clone)]
pub struct Frame {
    head: Vec<u8>,
    arrays: Vec<Values>,
}

impl Frame {
    /// The frame of a message from this peer.
    pub fn new(from: Peer, message: &Message) -> Self {
        let mut w = Writer::default();
        from.put(&mut w);
        message.put(&mut w);
        let Writer { text, arrays } = w;
        let mut head = Vec::with_capacity(HEADER + 8 * arrays.len() + text.len());
        head.extend(MAGIC);
        head.extend(VERSION.to_le_bytes());
        head.extend((arrays.len() as u32).to_le_bytes());
        head.extend((text.len() as u32).to_le_bytes());
        head.extend(arrays.iter().map(|a| 4 * a.len() as u64).sum::<u64>().to_le_bytes());
        head.extend([0; 8]);
        arrays.iter().for_each(|a| head.extend((a.len() as u64).to_le_bytes()));
        head.extend(text);
        let sum = checksum(&head);
        head[24..28].copy_from_slice(&sum.to_le_bytes());
        Self { head, arrays }
    }

    /// How many bytes it has.
    pub fn len(&self) -> usize {
        self.head.len() + self.arrays.iter().map(|a| 4 * a.len()).sum::<usize>()
    }

    /// Never: there is always a header.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Writes it, arrays straight from where they are.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut parts: Vec<IoSlice<'_>> = Vec::with_capacity(1 + self.arrays.len());
        parts.push(IoSlice::new(&self.head));
        parts.extend(self.arrays.iter().map(|a| IoSlice::new(bytemuck::cast_slice(a))));
        let mut parts = &mut parts[..];
        IoSlice::advance_slices(&mut parts, 0); // drops empty arrays at the front
        while !parts.is_empty() {
            match to.write_vectored(parts) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => IoSlice::advance_slices(&mut parts, n),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}

/// Reads one message. `None` is an end between two frames.
pub fn read(from: &mut impl Read, limits: &Limits) -> io::Result<Option<(Peer, Message)>> {
    let mut header = [0; HEADER];
    let mut got = 0;
    while got < HEADER {
        match from.read(&mut header[got..]) {
            Ok(0) if got == 0 => return Ok(None),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    let claimed = Claimed::new(&header, limits).map_err(io::Error::other)?;
    let mut rest = vec![0; 8 * claimed.arrays + claimed.text];
    from.read_exact(&mut rest)?;
    let lens = claimed.check(&header, &rest).map_err(io::Error::other)?;
    let mut arrays = VecDeque::with_capacity(lens.len());
    for len in lens {
        let mut array = vec![0f32; len];
        from.read_exact(bytemuck::cast_slice_mut(&mut array))?;
        arrays.push_back(Arc::new(array));
    }
    parse(&rest[8 * claimed.arrays..], arrays).map(Some).map_err(io::Error::other)
}

/// What a header says, within the limits.
struct Claimed {
    arrays: usize,
    text: usize,
    data: u64,
    checksum: u32,
}

impl Claimed {
    fn new(header: &[u8; HEADER], limits: &Limits) -> Result<Self, WireError> {
        let u32_at = |i: usize| u32::from_le_bytes(header[i..i + 4].try_into().expect("four bytes"));
        let data = u64::from_le_bytes(header[16..24].try_into().expect("eight bytes"));
        if header[..4] != MAGIC {
            return Err(WireError::Unknown { what: "header", got: u32_at(0).into() });
        }
        if u32_at(4) != VERSION || u32_at(28) != 0 {
            return Err(WireError::Unknown { what: "version", got: u32_at(4).into() });
        }
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
        Ok(Self { arrays: arrays as usize, text: text as usize, data, checksum: u32_at(24) })
    }

    /// The lengths of the arrays, once the checksum is right and they add up to what was claimed.
    fn check(&self, header: &[u8; HEADER], rest: &[u8]) -> Result<Vec<usize>, WireError> {
        let got = checksum_of(header, rest);
        if got != self.checksum {
            return Err(WireError::Checksum { want: self.checksum, got });
        }
        let lens = rest[..8 * self.arrays].chunks_exact(8);
        let lens: Vec<u64> = lens.map(|b| u64::from_le_bytes(b.try_into().expect("eight bytes"))).collect();
        let total = lens.iter().try_fold(0u64, |sum, len| sum.checked_add(len.checked_mul(4)?));
        if total != Some(self.data) {
            return Err(WireError::Unknown { what: "sum of array lengths", got: self.data });
        }
        Ok(lens.into_iter().map(|len| len as usize).collect())
    }
}

fn parse(text: &[u8], arrays: VecDeque<Values>) -> Result<(Peer, Message), WireError> {
    let mut r = Reader { text, arrays };
    let (from, message) = (Peer::get(&mut r)?, Message::get(&mut r)?);
    r.end()?;
    Ok((from, message))
}

/// Makes the checksum of a frame right, as far as its header tells where the text ends: for tests that
/// change bytes.
pub fn seal(frame: &mut [u8]) {
    let Some((header, rest)) = frame.split_first_chunk_mut::<HEADER>() else { return };
    let Ok(claimed) = Claimed::new(header, &Limits::default()) else { return };
    let text = rest.get(..8 * claimed.arrays + claimed.text);
    if let Some(text) = text {
        let sum = checksum_of(header, text);
        header[24..28].copy_from_slice(&sum.to_le_bytes());
    }
}

fn checksum(head: &[u8]) -> u32 {
    let (header, rest) = head.split_at(HEADER);
    checksum_of(header.try_into().expect("a head begins with a header"), rest)
}

fn checksum_of(header: &[u8; HEADER], rest: &[u8]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(&header[..24]);
    crc.update(rest);
    crc.finalize()
}

#[cfg(test)]
mod tests;
