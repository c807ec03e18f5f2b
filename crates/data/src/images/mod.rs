//! Pictures: decoding, resizing, and folders of them.

mod codec;
mod folder;
mod resize;

pub use codec::{decode, encode_png};
pub use folder::ImageFolder;

/// What a pixel has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channels {
    /// One grey value.
    Grey,
    /// Red, green and blue.
    Rgb,
}

impl Channels {
    /// How many numbers a pixel has.
    pub fn count(self) -> usize {
        match self {
            Channels::Grey => 1,
            Channels::Rgb => 3,
        }
    }
}

/// A picture with 8 bits per channel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Image {
    /// Pixels from left to right.
    pub width: usize,
    /// Pixels from top to bottom.
    pub height: usize,
    /// What a pixel has.
    pub channels: Channels,
    /// The pixels, (height, width, channels), row-major.
    pub pixels: Vec<u8>,
}
