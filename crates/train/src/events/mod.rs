//! Event files that TensorBoard reads: scalars, histograms and pictures.
//!
//! A file is a row of TFRecords (length, checksum, bytes, checksum), each holding one `Event` message in the
//! wire format of protocol buffers. Only the few fields that are needed are written, by hand.

mod crc32c;
mod histogram;
mod message;

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use thalweg_data::{Image, encode_png};
use thalweg_tensor::Tensor;

use crate::error::TrainError;
use message::Message;

pub use crc32c::crc32c;

/// A file that is being written. Each event is in the file when the call returns.
///
/// ```
/// use thalweg_train::events::EventWriter;
/// let dir = std::env::temp_dir().join(format!("thalweg-events-doc-{}", std::process::id()));
/// std::fs::create_dir_all(&dir).unwrap();
/// let mut events = EventWriter::create(&dir)?;
/// events.scalar(1, "loss", 0.5)?;
/// assert!(events.path().file_name().unwrap().to_str().unwrap().starts_with("events.out.tfevents."));
/// # std::fs::remove_dir_all(dir).unwrap();
/// # Ok::<(), thalweg_train::TrainError>(())
/// ```
#[derive(Debug)]
pub struct EventWriter {
    file: File,
    path: PathBuf,
}

impl EventWriter {
    /// A new file in this folder, with a name that TensorBoard looks for.
    pub fn create(folder: &Path) -> Result<Self, TrainError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut n = 0;
        let (file, path) = loop {
            let name =
                format!("events.out.tfevents.{:010}.thalweg.{}.{n}", now.as_secs(), std::process::id());
            let path = folder.join(name);
            match OpenOptions::new().append(true).create_new(true).open(&path) {
                Ok(file) => break (file, path),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => n += 1,
                Err(e) => return Err(TrainError::io("create", &path)(e)),
            }
        };
        let mut writer = Self { file, path };
        writer.event(0, |event| event.text(3, "brain.Event:2"))?;
        Ok(writer)
    }

    /// A new file for a run that goes on after a step: TensorBoard forgets later events of the files before.
    pub fn resume(folder: &Path, step: u64) -> Result<Self, TrainError> {
        let mut writer = Self::create(folder)?;
        // A session log with the status START.
        writer.event(step + 1, |event| event.message(7, |log| log.int(1, 1)))?;
        Ok(writer)
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// One number.
    pub fn scalar(&mut self, step: u64, tag: &str, value: f32) -> Result<(), TrainError> {
        self.value(step, tag, |v| v.float(2, value))
    }

    /// How the values of a tensor are distributed; those that are not finite are left out.
    pub fn histogram(&mut self, step: u64, tag: &str, values: &Tensor) -> Result<(), TrainError> {
        let values = values.to_dtype(thalweg_core::DType::F64).contiguous();
        let histogram = histogram::Histogram::of(values.as_slice::<f64>().expect("made contiguous above"));
        self.value(step, tag, |v| v.message(5, |m| histogram.write(m)))
    }

    /// A picture.
    pub fn image(&mut self, step: u64, tag: &str, image: &Image) -> Result<(), TrainError> {
        let png = encode_png(image);
        self.value(step, tag, |v| {
            v.message(4, |m| {
                m.int(1, image.height as u64);
                m.int(2, image.width as u64);
                m.int(3, image.channels.count() as u64);
                m.bytes(4, &png);
            });
        })
    }

    /// Forces what was written to disk.
    pub fn sync(&mut self) -> Result<(), TrainError> {
        self.file.sync_data().map_err(TrainError::io("write", &self.path))
    }

    fn value(&mut self, step: u64, tag: &str, fill: impl FnOnce(&mut Message)) -> Result<(), TrainError> {
        self.event(step, |event| {
            event.message(5, |summary| {
                summary.message(1, |value| {
                    value.text(1, tag);
                    fill(value);
                });
            });
        })
    }

    fn event(&mut self, step: u64, fill: impl FnOnce(&mut Message)) -> Result<(), TrainError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let mut event = Message::default();
        event.double(1, now.as_secs_f64());
        event.int(2, step);
        fill(&mut event);
        // One write: a reader never sees half a record unless the machine stops in between.
        self.file.write_all(&record(event.as_bytes())).map_err(TrainError::io("write", &self.path))
    }
}

/// A TFRecord: length, its checksum, the bytes, their checksum.
fn record(bytes: &[u8]) -> Vec<u8> {
    // As in TensorFlow's `lib/hash/crc32c.h`: a checksum of data that holds checksums would be weak.
    let masked = |b: &[u8]| crc32c(b).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes();
    let length = (bytes.len() as u64).to_le_bytes();
    [&length[..], &masked(&length), bytes, &masked(bytes)].concat()
}
