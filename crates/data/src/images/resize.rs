//! Resizing with a triangle filter that widens when the picture shrinks, so that no pixel is overlooked.

use crate::images::Image;

/// For each new pixel the old ones that it is made of: the first, and the weights of it and its followers.
fn weights(old: usize, new: usize) -> Vec<(usize, Vec<f32>)> {
    let scale = old as f64 / new as f64;
    let reach = scale.max(1.0);
    let one = |i: usize| {
        let centre = (i as f64 + 0.5) * scale - 0.5;
        let first = (centre - reach).ceil().max(0.0) as usize;
        let last = ((centre + reach).floor() as usize).min(old - 1);
        let raw: Vec<f64> =
            (first..=last).map(|j| (1.0 - (j as f64 - centre).abs() / reach).max(0.0)).collect();
        let sum: f64 = raw.iter().sum();
        (first, raw.iter().map(|w| (w / sum) as f32).collect())
    };
    (0..new).map(one).collect()
}

impl Image {
    /// The picture in this size as planes, (channels, height, width), in `0..=1`.
    pub(crate) fn planes(&self, height: usize, width: usize) -> Vec<f32> {
        let c = self.channels.count();
        let (rows, cols) = (weights(self.height, height), weights(self.width, width));
        let mut narrow = vec![0.0; self.height * width * c]; // (old height, new width, channels)
        for (row, line) in narrow.chunks_exact_mut(width * c).enumerate() {
            let old = &self.pixels[row * self.width * c..];
            for (pixel, (first, weights)) in line.chunks_exact_mut(c).zip(&cols) {
                for (k, value) in pixel.iter_mut().enumerate() {
                    let taken = old[first * c + k..].iter().step_by(c);
                    *value = weights.iter().zip(taken).map(|(w, &v)| w * f32::from(v)).sum();
                }
            }
        }
        let mut out = vec![0.0; c * height * width];
        for (k, plane) in out.chunks_exact_mut(height * width).enumerate() {
            for (line, (first, weights)) in plane.chunks_exact_mut(width).zip(&rows) {
                for (col, value) in line.iter_mut().enumerate() {
                    let taken = narrow[first * width * c + col * c + k..].iter().step_by(width * c);
                    *value = weights.iter().zip(taken).map(|(w, v)| w * v).sum::<f32>() / 255.0;
                }
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use crate::images::{Channels, Image};

    fn grey(height: usize, width: usize, pixels: &[u8]) -> Image {
        Image { width, height, channels: Channels::Grey, pixels: pixels.to_vec() }
    }

    #[test]
    fn the_same_size_changes_nothing() {
        let pixels: Vec<u8> = (0..24).map(|i| i * 10).collect();
        let image = Image { width: 4, height: 2, channels: Channels::Rgb, pixels };
        let planes = image.planes(2, 4);
        for (k, plane) in planes.chunks_exact(8).enumerate() {
            for (i, v) in plane.iter().enumerate() {
                assert_eq!((v * 255.0).round() as u8, image.pixels[i * 3 + k]);
            }
        }
    }

    #[test]
    fn a_uniform_picture_stays_uniform() {
        for size in [1, 2, 3, 7, 16] {
            let planes = grey(5, 6, &[51; 30]).planes(size, size);
            assert!(planes.iter().all(|v| (v - 0.2).abs() < 1e-6), "{planes:?}");
        }
    }

    /// Expected by hand: at scale 2 a new pixel has weights 1/8, 3/8, 3/8, 1/8; at the border the
    /// missing one is shared out.
    #[test]
    fn shrinking_sees_every_pixel() {
        let planes = grey(1, 4, &[0, 0, 255, 0]).planes(1, 2);
        assert!((planes[0] - 1.0 / 7.0).abs() < 1e-6 && (planes[1] - 3.0 / 7.0).abs() < 1e-6, "{planes:?}");
    }
}
