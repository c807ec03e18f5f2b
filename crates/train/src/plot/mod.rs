//! Curves as pictures: SVG text, or pixels for a PNG file.

mod axis;
mod canvas;
mod font;
pub(crate) mod svg;

use thalweg_data::{Channels, Image};

use axis::{Axis, Scale};
use canvas::Canvas;

/// One curve.
#[derive(Debug, Clone)]
pub struct Series {
    /// What it is called in the legend.
    pub name: String,
    /// The points, by rising x. Those that are not finite are gaps.
    pub points: Vec<(f64, f64)>,
}

/// A picture with curves.
///
/// ```
/// use thalweg_train::plot::{Plot, Series};
/// let series = Series { name: "a".into(), points: (1..50).map(|i| (i as f64, 1.0 / i as f64)).collect() };
/// let title = "loss".into();
/// let plot = Plot { title, x_name: "step".into(), series: vec![series], log_y: true, ..Plot::default() };
/// assert!(plot.svg().starts_with("<svg"));
/// assert_eq!(plot.image(640, 400).width, 640);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Plot {
    /// What the curves show.
    pub title: String,
    /// What runs along the bottom.
    pub x_name: String,
    /// What stands at 0, 1, 2 and so on instead of numbers, if anything does.
    pub x_labels: Vec<String>,
    /// The curves.
    pub series: Vec<Series>,
    /// Powers of ten at equal distances; values that are not positive are gaps.
    pub log_y: bool,
}

/// Colours that are told apart with most kinds of colour blindness (Okabe and Ito), dark enough on white.
const COLOURS: [[u8; 3]; 7] = [
    [0, 114, 178],
    [213, 94, 0],
    [0, 158, 115],
    [204, 121, 167],
    [230, 159, 0],
    [86, 180, 233],
    [90, 90, 90],
];

const INK: [u8; 3] = [40, 40, 40];
const GRID: [u8; 3] = [225, 225, 225];

/// Something that lines and text can be put on. Coordinates are in pixels from the top left.
trait Surface {
    fn line(&mut self, points: &[(f64, f64)], colour: [u8; 3], width: f64);
    fn text(&mut self, x: f64, y: f64, text: &str, colour: [u8; 3], anchor: Anchor);
}

/// Where in a text its point is.
#[derive(Clone, Copy, PartialEq)]
enum Anchor {
    Start,
    Middle,
    End,
}

impl Plot {
    /// The picture as SVG text.
    pub fn svg(&self) -> String {
        let (width, height) = (720, 420);
        let mut svg = svg::Svg::new(width, height);
        self.draw(&mut svg, f64::from(width), f64::from(height));
        svg.finish()
    }

    /// The picture as pixels.
    pub fn image(&self, width: usize, height: usize) -> Image {
        let mut canvas = Canvas::new(width, height);
        self.draw(&mut canvas, width as f64, height as f64);
        Image { width, height, channels: Channels::Rgb, pixels: canvas.into_pixels() }
    }

    fn draw(&self, surface: &mut dyn Surface, width: f64, height: f64) {
        let visible = |y: f64| y.is_finite() && (!self.log_y || y > 0.0);
        let points =
            || self.series.iter().flat_map(|s| &s.points).filter(|p| p.0.is_finite() && visible(p.1));
        let legend_height = 18.0 * self.series.len() as f64;
        let (left, right, top, bottom) = (64.0, width - 16.0, 34.0, height - 44.0 - legend_height);
        let x_axis = Axis::new(points().map(|p| p.0), Scale::Linear);
        let y_axis = Axis::new(points().map(|p| p.1), if self.log_y { Scale::Log } else { Scale::Linear });
        let to_x = |x: f64| left + x_axis.place(x) * (right - left);
        let to_y = |y: f64| bottom - y_axis.place(y) * (bottom - top);

        for (value, label) in y_axis.ticks() {
            let y = to_y(value);
            surface.line(&[(left, y), (right, y)], GRID, 1.0);
            surface.text(left - 8.0, y + 4.0, &label, INK, Anchor::End);
        }
        let names = (0..).zip(&self.x_labels).map(|(i, name)| (f64::from(i), name.clone())).collect();
        for (value, label) in if self.x_labels.is_empty() { x_axis.ticks() } else { names } {
            let x = to_x(value);
            surface.line(&[(x, bottom), (x, bottom + 4.0)], INK, 1.0);
            surface.text(x, bottom + 17.0, &label, INK, Anchor::Middle);
        }
        surface.line(&[(left, top), (left, bottom), (right, bottom)], INK, 1.0);
        surface.text((left + right) / 2.0, 20.0, &self.title, INK, Anchor::Middle);
        surface.text((left + right) / 2.0, bottom + 34.0, &self.x_name, INK, Anchor::Middle);

        for (i, series) in self.series.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            for run in series.points.split(|p| !(p.0.is_finite() && visible(p.1))).filter(|r| !r.is_empty()) {
                let mut line: Vec<(f64, f64)> = run.iter().map(|&(x, y)| (to_x(x), to_y(y))).collect();
                if let [(x, y)] = line[..] {
                    // A point alone would be invisible.
                    line = vec![(x - 2.0, y), (x + 2.0, y)];
                }
                surface.line(&thinned(line), colour, 1.8);
            }
            let y = bottom + 50.0 + 18.0 * i as f64;
            surface.line(&[(left, y), (left + 22.0, y)], colour, 3.0);
            surface.text(left + 30.0, y + 4.0, &series.name, INK, Anchor::Start);
        }
    }
}

/// At most four points per column of pixels: the first, the extremes and the last look the same as all of them.
fn thinned(line: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let columns = line.chunk_by(|a, b| a.0.floor() == b.0.floor());
    let few = |column: &[(f64, f64)]| {
        let extreme = |sign: f64| {
            (0..column.len()).max_by(|&a, &b| (sign * column[a].1).total_cmp(&(sign * column[b].1)))
        };
        let mut kept = [Some(0), extreme(1.0), extreme(-1.0), Some(column.len() - 1)];
        kept.sort();
        kept.into_iter().flatten().map(|i| column[i]).collect::<Vec<_>>()
    };
    columns.flat_map(|c| if c.len() <= 4 { c.to_vec() } else { few(c) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_is_thinned_to_its_extremes() {
        let line: Vec<(f64, f64)> =
            (0..100_000).map(|i| (f64::from(i) / 1000.0, f64::from(i % 777))).collect();
        let few = thinned(line.clone());
        assert!(few.len() <= 400 && few.is_sorted_by_key(|p| p.0));
        for column in 0..100 {
            let range = |points: &[(f64, f64)]| {
                let ys = points.iter().filter(|p| p.0.floor() == f64::from(column)).map(|p| p.1);
                (ys.clone().fold(f64::INFINITY, f64::min), ys.fold(0.0, f64::max))
            };
            assert_eq!(range(&few), range(&line));
        }
        assert_eq!(thinned(line[..3].to_vec()), line[..3]);
    }
}
