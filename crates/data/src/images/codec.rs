//! PNG and JPEG bytes to pixels, and pixels to PNG bytes.

use std::io::Cursor;

use zune_jpeg::JpegDecoder;
use zune_jpeg::zune_core::bytestream::ZCursor;
use zune_jpeg::zune_core::colorspace::ColorSpace;
use zune_jpeg::zune_core::options::DecoderOptions;

use crate::error::Reason;
use crate::images::{Channels, Image};

/// Pixels that a picture may have, so that a small file does not ask for all memory.
const MAX_PIXELS: usize = 1 << 28;

/// The picture in the bytes of a PNG or JPEG file. Transparency is dropped; 16 bits become 8.
///
/// ```
/// use thalweg_data::{Channels, Image, decode, encode_png};
/// let image = Image { width: 2, height: 1, channels: Channels::Rgb, pixels: vec![255, 0, 0, 0, 0, 255] };
/// assert_eq!(decode(&encode_png(&image), Channels::Rgb).unwrap(), image);
/// assert_eq!(decode(&encode_png(&image), Channels::Grey).unwrap().pixels, [76, 29]);
/// assert!(decode(b"no picture", Channels::Grey).is_err());
/// ```
pub fn decode(bytes: &[u8], channels: Channels) -> Result<Image, Reason> {
    let image = match bytes {
        [0x89, b'P', b'N', b'G', ..] => decode_png(bytes)?,
        [0xff, 0xd8, ..] => decode_jpeg(bytes, channels)?,
        _ => {
            let found = bytes[..bytes.len().min(8)].to_vec();
            return Err(Reason::Magic { found, want: "a PNG or JPEG picture" });
        }
    };
    Ok(image.with_channels(channels))
}

fn decode_png(bytes: &[u8]) -> Result<Image, Reason> {
    let picture = |e: png::DecodingError| Reason::Picture(e.to_string());
    let mut decoder = png::Decoder::new(Cursor::new(bytes));
    decoder.set_transformations(png::Transformations::normalize_to_color8());
    let mut reader = decoder.read_info().map_err(picture)?;
    let size = checked_size(reader.info().width as usize, reader.info().height as usize)?;
    let mut raw = vec![0; reader.output_buffer_size().ok_or(too_large())?];
    let frame = reader.next_frame(&mut raw).map_err(picture)?;
    raw.truncate(frame.buffer_size());
    let (kept, stride, channels) = match frame.color_type {
        png::ColorType::Grayscale => (1, 1, Channels::Grey),
        png::ColorType::GrayscaleAlpha => (1, 2, Channels::Grey),
        png::ColorType::Rgb => (3, 3, Channels::Rgb),
        png::ColorType::Rgba => (3, 4, Channels::Rgb),
        png::ColorType::Indexed => return Err(Reason::Picture("a palette that was not expanded".into())),
    };
    let pixels = raw.chunks_exact(stride).flat_map(|p| &p[..kept]).copied().collect();
    Ok(Image { width: size.0, height: size.1, channels, pixels })
}

fn decode_jpeg(bytes: &[u8], channels: Channels) -> Result<Image, Reason> {
    let space = if channels == Channels::Grey { ColorSpace::Luma } else { ColorSpace::RGB };
    let limit = 1 << 16;
    let options =
        DecoderOptions::default().jpeg_set_out_colorspace(space).set_max_width(limit).set_max_height(limit);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|e| Reason::Picture(e.to_string()))?;
    let (width, height) = decoder.dimensions().ok_or_else(|| Reason::Picture("it has no size".into()))?;
    checked_size(width, height)?;
    let pixels = decoder.decode().map_err(|e| Reason::Picture(e.to_string()))?;
    // A grey picture stays grey whatever was asked for.
    let channels = if pixels.len() == width * height { Channels::Grey } else { Channels::Rgb };
    if pixels.len() != width * height * channels.count() {
        return Err(Reason::Picture(format!("{} bytes for {width} x {height} pixels", pixels.len())));
    }
    Ok(Image { width, height, channels, pixels })
}

fn checked_size(width: usize, height: usize) -> Result<(usize, usize), Reason> {
    match width.checked_mul(height) {
        Some(n) if n > 0 && n <= MAX_PIXELS => Ok((width, height)),
        _ => Err(too_large()),
    }
}

fn too_large() -> Reason {
    Reason::Picture(format!("it has no pixels, or more than {MAX_PIXELS}"))
}

impl Image {
    /// The same picture in grey (with the weights of ITU-R BT.601) or in colours that are all grey.
    pub fn with_channels(self, channels: Channels) -> Self {
        let pixels = match (self.channels, channels) {
            (a, b) if a == b => self.pixels,
            (_, Channels::Rgb) => self.pixels.iter().flat_map(|&v| [v; 3]).collect(),
            (_, Channels::Grey) => self
                .pixels
                .chunks_exact(3)
                .map(|p| {
                    let [r, g, b] = [p[0], p[1], p[2]].map(u32::from);
                    ((r * 299 + g * 587 + b * 114 + 500) / 1000) as u8
                })
                .collect(),
        };
        Self { pixels, channels, ..self }
    }
}

/// The bytes of a PNG file. Panics when the pixels do not fit the sizes.
#[track_caller]
pub fn encode_png(image: &Image) -> Vec<u8> {
    let need = image.width * image.height * image.channels.count();
    assert_eq!(image.pixels.len(), need, "encode_png: {} x {} pixels", image.width, image.height);
    let mut file = Vec::new();
    let mut encoder = png::Encoder::new(&mut file, image.width as u32, image.height as u32);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_color(match image.channels {
        Channels::Grey => png::ColorType::Grayscale,
        Channels::Rgb => png::ColorType::Rgb,
    });
    let mut writer = encoder.write_header().expect("sizes and colours are valid");
    writer.write_image_data(&image.pixels).expect("a vector takes all bytes");
    writer.finish().expect("a vector takes all bytes");
    file
}
