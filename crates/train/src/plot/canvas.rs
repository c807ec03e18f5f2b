//! Lines and text as pixels.

use super::font::glyph;
use super::{Anchor, Surface};

pub(super) struct Canvas {
    width: usize,
    height: usize,
    pixels: Vec<u8>, // (height, width, 3)
}

/// Width of a letter with the gap after it.
const ADVANCE: usize = 6;

impl Canvas {
    pub(super) fn new(width: usize, height: usize) -> Self {
        Self { width, height, pixels: vec![255; width * height * 3] }
    }

    pub(super) fn into_pixels(self) -> Vec<u8> {
        self.pixels
    }

    /// Mixes a colour into a pixel; outside the picture nothing happens.
    fn blend(&mut self, x: i64, y: i64, colour: [u8; 3], share: f64) {
        let inside = |v: i64, n: usize| usize::try_from(v).ok().filter(|v| *v < n);
        let (Some(x), Some(y)) = (inside(x, self.width), inside(y, self.height)) else { return };
        let at = (y * self.width + x) * 3;
        for (pixel, new) in self.pixels[at..at + 3].iter_mut().zip(colour) {
            *pixel = (f64::from(*pixel) * (1.0 - share) + f64::from(new) * share).round() as u8;
        }
    }
}

impl Surface for Canvas {
    /// A pixel is covered as far as its centre is inside the line; joints are round.
    fn line(&mut self, points: &[(f64, f64)], colour: [u8; 3], width: f64) {
        let reach = width / 2.0 + 0.5;
        let low = |v: f64| (v - reach).floor().max(-1.0) as i64;
        let xs = points.iter().map(|p| p.0);
        let left = low(xs.clone().fold(f64::INFINITY, f64::min)).max(0) as usize;
        let right = (xs.fold(0.0, f64::max) + reach).ceil().min(self.width as f64) as usize;
        // Coverage is gathered over all pieces first: pieces that overlap at a joint must not darken it.
        let columns = right.saturating_sub(left);
        let mut cover = vec![0f64; columns * self.height];
        for piece in points.windows(2) {
            let ((x0, y0), (x1, y1)) = (piece[0], piece[1]);
            let (dx, dy) = (x1 - x0, y1 - y0);
            let squared = (dx * dx + dy * dy).max(1e-12);
            let top = low(y0.min(y1)).max(0) as usize;
            let bottom = ((y0.max(y1) + reach).ceil().max(0.0) as usize).min(self.height);
            let from = low(x0.min(x1)).max(left as i64) as usize;
            let to = ((x0.max(x1) + reach).ceil().max(0.0) as usize).min(right);
            for y in top..bottom {
                for x in from..to {
                    let (px, py) = (x as f64 + 0.5 - x0, y as f64 + 0.5 - y0);
                    let t = ((px * dx + py * dy) / squared).clamp(0.0, 1.0);
                    let distance = (px - t * dx).hypot(py - t * dy);
                    let share = (reach - distance).clamp(0.0, 1.0);
                    let slot = &mut cover[y * columns + x - left];
                    *slot = slot.max(share);
                }
            }
        }
        for (i, share) in cover.into_iter().enumerate().filter(|(_, s)| *s > 0.0) {
            self.blend((left + i % columns) as i64, (i / columns) as i64, colour, share);
        }
    }

    fn text(&mut self, x: f64, y: f64, text: &str, colour: [u8; 3], anchor: Anchor) {
        let width = (text.chars().count() * ADVANCE) as f64;
        let start = match anchor {
            Anchor::Start => x,
            Anchor::Middle => x - width / 2.0,
            Anchor::End => x - width,
        };
        // `y` is the base line; letters are seven pixels high and two may hang below.
        let (start, top) = (start.round() as i64, y.round() as i64 - 8);
        for (i, letter) in text.chars().enumerate() {
            for (column, bits) in glyph(letter).into_iter().enumerate() {
                for row in (0..8).filter(|row| bits >> row & 1 == 1) {
                    self.blend(start + (i * ADVANCE + column) as i64, top + row, colour, 1.0);
                }
            }
        }
    }
}
