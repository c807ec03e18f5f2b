//! Frames in pieces: what leaves next, and what has come of it.
//!
//! | bytes | what |
//! |---|---|
//! | 0..4 | `CHNK` |
//! | 4..8 | lane |
//! | 8..12 | bytes of values, a multiple of four |
//! | 12..16 | where they are: 0 here, 1 in the memory that both sides share |
//! | 16..20 | CRC-32 of the values; 0 when they are in shared memory |
//! | 20..24 | CRC-32 of the header up to here |
//!
//! A chunk continues the frame that its lane has begun. The arrays of an answer are received in the place where whoever
//! asked will have them (`landing`).

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::io::{self, IoSlice, Read, Write};
use std::sync::Arc;

use super::codec::{Reader, Wire, WireError};
use super::{Claimed, Frame, HEADER, Limits, MAGIC, Past, compare, u32_at};
use crate::ids::Peer;
use crate::landing::Landing;
use crate::message::Data;
use crate::ring::{Inlet, Outlet};
use crate::values::Values;

/// Values per chunk: 1 MiB. Small enough for the second-level cache and for others to pass, large enough to hide
/// what a chunk costs.
const CHUNK: usize = 1 << 18;
const CHUNK_HEADER: usize = 24;
const SIGNED: usize = CHUNK_HEADER - 4;
const CHUNK_MAGIC: [u8; 4] = *b"CHNK";
/// Chunks of fewer values travel with their header.
const WORTH_SHARING: usize = 1 << 14;
/// Values that are read and then looked at for their checksum, while they are in the cache.
const PIECE: usize = 1 << 15;
/// Bytes of text for which there is room at once.
const ROOM: usize = 1 << 20;

/// Where the values of a chunk are.
const HERE: u32 = 0;
const SHARED: u32 = 1;

/// Frames that wait to be sent over one connection.
#[derive(Debug, Default)]
pub struct Lanes {
    waiting: BTreeMap<u8, VecDeque<Sending>>, // no lane is empty
    outlet: Option<Outlet>,
}

#[derive(Debug)]
struct Sending {
    frame: Frame,
    begun: bool,
    array: usize, // the next value to be sent is in this array
    at: usize,    // at this position
}

impl Lanes {
    /// For a connection whose sides share memory.
    pub fn sharing(outlet: Option<Outlet>) -> Self {
        Self { waiting: BTreeMap::new(), outlet }
    }

    /// A frame is to be sent.
    pub fn add(&mut self, frame: Frame) {
        let lane = self.waiting.entry(frame.lane).or_default();
        lane.push_back(Sending { frame, begun: false, array: 0, at: 0 });
    }

    /// Whether everything is sent.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Sends the next piece of the lowest lane: the head of a frame or a chunk, or both. How many bytes the frame has had
    /// that was ended by it.
    pub fn write(&mut self, to: &mut impl Write) -> io::Result<usize> {
        let Some(mut lane) = self.waiting.first_entry() else { return Ok(0) };
        let sending = lane.get_mut().front_mut().expect("no lane is empty");
        let last = sending.write(to, self.outlet.as_mut())?;
        let ended = if last { lane.get_mut().pop_front() } else { None };
        if lane.get().is_empty() {
            lane.remove();
        }
        Ok(ended.map_or(0, |sending| sending.frame.len()))
    }
}

impl Sending {
    /// Sends the next piece; whether it was the last.
    fn write(&mut self, to: &mut impl Write, outlet: Option<&mut Outlet>) -> io::Result<bool> {
        let (slices, array, at) = self.next();
        let n: usize = slices.iter().map(|s| s.len()).sum();
        let outlet = outlet.filter(|_| n >= WORTH_SHARING);
        let mut header = [0; CHUNK_HEADER];
        header[..4].copy_from_slice(&CHUNK_MAGIC);
        header[4..8].copy_from_slice(&u32::from(self.frame.lane).to_le_bytes());
        header[8..12].copy_from_slice(&(4 * n as u32).to_le_bytes());
        let (place, sum) = if outlet.is_some() { (SHARED, 0) } else { (HERE, checksum(&slices)) };
        header[12..16].copy_from_slice(&place.to_le_bytes());
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        let sum = crc32fast::hash(&header[..SIGNED]);
        header[SIGNED..].copy_from_slice(&sum.to_le_bytes());
        let mut parts = Vec::with_capacity(2 + slices.len());
        if !self.begun {
            parts.push(IoSlice::new(&self.frame.head));
        }
        if n > 0 {
            parts.push(IoSlice::new(&header));
        }
        match outlet {
            Some(outlet) => outlet.put(&slices)?,
            None => parts.extend(slices.iter().map(|s| IoSlice::new(bytemuck::cast_slice(s)))),
        }
        write_all(to, &mut parts)?;
        (self.begun, self.array, self.at) = (true, array, at);
        Ok(self.array == self.frame.arrays.len())
    }

    /// The values of the next chunk, and the position after them.
    fn next(&self) -> (Vec<&[f32]>, usize, usize) {
        let (mut array, mut at, mut left) = (self.array, self.at, CHUNK);
        let mut slices = Vec::new();
        while let Some(values) = self.frame.arrays.get(array).map(|a| &a.values()[at..]) {
            let slice = &values[..left.min(values.len())];
            left -= slice.len();
            if !slice.is_empty() {
                slices.push(slice);
            }
            if slice.len() < values.len() {
                at += slice.len();
                break;
            }
            (array, at) = (array + 1, 0);
        }
        (slices, array, at)
    }
}

fn checksum(slices: &[&[f32]]) -> u32 {
    let mut crc = crc32fast::Hasher::new();
    slices.iter().for_each(|slice| crc.update(bytemuck::cast_slice(slice)));
    crc.finalize()
}

fn write_all(to: &mut impl Write, parts: &mut [IoSlice<'_>]) -> io::Result<()> {
    let mut parts = parts;
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

/// What has come over one connection and is not yet a message.
#[derive(Debug)]
pub struct Incoming {
    limits: Limits,
    begun: BTreeMap<u8, Begun>,
    past: BTreeMap<u8, Past>,
    landing: Arc<Landing>,
    inlet: Option<Inlet>,
    received: u64,
}

/// A frame of which values are missing.
#[derive(Debug)]
struct Begun {
    text: Vec<u8>,
    arrays: Vec<Values>, // nobody else has them
    array: usize,        // the next value goes into this array
    at: usize,           // at this position
    left: u64,           // bytes that are missing
}

impl Incoming {
    /// Nothing has come.
    pub fn new(limits: Limits) -> Self {
        let (begun, past, landing) = Default::default();
        Self { limits, begun, past, landing, inlet: None, received: 0 }
    }

    /// For a connection whose sides share memory.
    pub(crate) fn sharing(self, inlet: Option<Inlet>) -> Self {
        Self { inlet, ..self }
    }

    /// Answers have their places.
    pub(crate) fn landing(self, landing: Arc<Landing>) -> Self {
        Self { landing, ..self }
    }

    /// Bytes that have come since the last time, by whatever way.
    pub fn take_received(&mut self) -> u64 {
        std::mem::take(&mut self.received)
    }

    /// Whether every frame that was begun is whole.
    pub fn is_between_frames(&self) -> bool {
        self.begun.is_empty()
    }

    /// Reads until a message is whole. `None` is an end between two frames.
    pub fn read(&mut self, from: &mut impl Read) -> io::Result<Option<(Peer, Data)>> {
        loop {
            let mut start = [0; CHUNK_HEADER];
            if !fill(from, &mut start)? {
                let whole = self.begun.is_empty();
                return if whole { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
            }
            self.received += CHUNK_HEADER as u64;
            let lane = match start {
                [b'C', b'H', b'N', b'K', ..] => self.chunk(from, &start)?,
                _ => self.begin(from, &start)?,
            };
            if let Entry::Occupied(begun) = self.begun.entry(lane)
                && begun.get().left == 0
            {
                let begun = begun.remove();
                return self.finish(lane, begun).map(Some).map_err(io::Error::other);
            }
        }
    }

    /// A frame begins.
    fn begin(&mut self, from: &mut impl Read, start: &[u8; CHUNK_HEADER]) -> io::Result<u8> {
        let mut header = [0; HEADER];
        header[..CHUNK_HEADER].copy_from_slice(start);
        if header[..4] != MAGIC {
            let got = u32_at(&header, 0).into();
            return Err(io::Error::other(WireError::Unknown { what: "header", got }));
        }
        from.read_exact(&mut header[CHUNK_HEADER..])?;
        let claimed = Claimed::new(&header, &self.limits).map_err(io::Error::other)?;
        // Memory is taken as it is needed: what is claimed may never come.
        let n = 8 * claimed.arrays + claimed.text;
        let mut rest = Vec::with_capacity(n.min(ROOM));
        if from.by_ref().take(n as u64).read_to_end(&mut rest)? < n {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.received += (HEADER - CHUNK_HEADER + rest.len()) as u64;
        let lens = claimed.check(&rest).map_err(io::Error::other)?;
        let (lane, most) = (claimed.lane, self.limits.data);
        let got = self.begun.values().fold(claimed.data, |sum, b| sum.saturating_add(b.left));
        if got > most {
            return Err(io::Error::other(WireError::Large { what: "data of all lanes", got, most }));
        }
        let Entry::Vacant(place) = self.begun.entry(lane) else {
            return Err(io::Error::other(WireError::Unknown { what: "free lane", got: lane.into() }));
        };
        let due = self.past.entry(lane).or_default().count();
        if claimed.number != due {
            return Err(io::Error::other(WireError::Repeated { due, got: claimed.number }));
        }
        let arrays = self.landing.take(claimed.answers, &lens);
        let text = rest.split_off(8 * claimed.arrays);
        place.insert(Begun { text, arrays, array: 0, at: 0, left: claimed.data });
        Ok(lane)
    }

    /// A frame goes on.
    fn chunk(&mut self, from: &mut impl Read, header: &[u8; CHUNK_HEADER]) -> io::Result<u8> {
        let unknown = |what, got: u32| io::Error::other(WireError::Unknown { what, got: got.into() });
        let [lane, n, place, want, signed] = [4, 8, 12, 16, SIGNED].map(|i| u32_at(header, i));
        compare(signed, crc32fast::hash(&header[..SIGNED])).map_err(io::Error::other)?;
        let begun = u8::try_from(lane).ok().and_then(|l| Some((l, self.begun.get_mut(&l)?)));
        let Some((lane, begun)) = begun else { return Err(unknown("lane", lane)) };
        if n == 0 || !n.is_multiple_of(4) || u64::from(n) > begun.left {
            return Err(unknown("length of a chunk", n));
        }
        self.received += u64::from(n);
        match (place, &mut self.inlet) {
            (HERE, _) => {
                let mut crc = crc32fast::Hasher::new();
                begun.fill(n as usize / 4, |to| {
                    to.chunks_mut(PIECE).try_for_each(|piece| {
                        let bytes: &mut [u8] = bytemuck::cast_slice_mut(piece);
                        from.read_exact(bytes)?;
                        crc.update(bytes);
                        Ok(())
                    })
                })?;
                compare(want, crc.finalize()).map_err(io::Error::other)?;
            }
            (SHARED, Some(inlet)) => begun.fill(n as usize / 4, |to| inlet.take(to))?,
            _ => return Err(unknown("place of a chunk", place)),
        }
        Ok(lane)
    }

    fn finish(&mut self, lane: u8, begun: Begun) -> Result<(Peer, Data), WireError> {
        let past = self.past.entry(lane).or_default();
        let arrays = begun.arrays.into();
        let mut r = Reader { text: &begun.text, arrays, keys: std::mem::take(&mut past.keys) };
        let (from, message) = (Peer::get(&mut r)?, Data::get(&mut r)?);
        r.end()?;
        past.keys = r.keys;
        Ok((from, message))
    }
}

impl Begun {
    /// Takes in the next `n` values, no more than are missing.
    fn fill(&mut self, n: usize, mut take: impl FnMut(&mut [f32]) -> io::Result<()>) -> io::Result<()> {
        let mut missing = n;
        while missing > 0 {
            let array = self.arrays[self.array].get_mut().expect("nobody else has it");
            let end = array.len().min(self.at + missing);
            take(&mut array[self.at..end])?;
            missing -= end - self.at;
            (self.array, self.at) = if end == array.len() { (self.array + 1, 0) } else { (self.array, end) };
        }
        self.left -= 4 * n as u64;
        Ok(())
    }
}

/// Reads all of it, or finds that nothing more comes.
fn fill(from: &mut impl Read, into: &mut [u8]) -> io::Result<bool> {
    let mut got = 0;
    while got < into.len() {
        match from.read(&mut into[got..]) {
            Ok(0) if got == 0 => return Ok(false),
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(n) => got += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(true)
}

/// How many bytes the frame head or chunk at the beginning has; none when it is neither.
pub(super) fn extent(bytes: &[u8]) -> usize {
    let u32_at =
        |i: usize| bytes.get(i..i + 4).map(|b| u32::from_le_bytes(b.try_into().expect("four bytes")));
    match (bytes.get(..4), u32_at(8), u32_at(12)) {
        (Some(magic), Some(n), Some(HERE)) if magic == CHUNK_MAGIC => CHUNK_HEADER.saturating_add(n as usize),
        (Some(magic), Some(_), Some(_)) if magic == CHUNK_MAGIC => CHUNK_HEADER,
        (Some(magic), Some(arrays), Some(text)) if magic == MAGIC => {
            HEADER.saturating_add(8 * arrays as usize).saturating_add(text as usize)
        }
        _ => 0,
    }
}

/// Writes the checksums of a chunk, as far as all of its header is there.
pub(super) fn sign(chunk: &mut [u8]) {
    if let Some((header, values)) = chunk.split_at_mut_checked(CHUNK_HEADER) {
        header[16..20].copy_from_slice(&crc32fast::hash(values).to_le_bytes());
        let sum = crc32fast::hash(&header[..SIGNED]);
        header[SIGNED..].copy_from_slice(&sum.to_le_bytes());
    }
}
