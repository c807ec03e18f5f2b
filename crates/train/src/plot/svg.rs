//! Lines and text as SVG.

use std::fmt::Write;

use super::{Anchor, Surface};

pub(super) struct Svg(String);

impl Svg {
    pub(super) fn new(width: u32, height: u32) -> Self {
        let head = "font-family=\"system-ui, sans-serif\" font-size=\"12\"";
        Self(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" {head}>\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
        ))
    }

    pub(super) fn finish(self) -> String {
        self.0 + "</svg>\n"
    }
}

impl Surface for Svg {
    fn line(&mut self, points: &[(f64, f64)], [r, g, b]: [u8; 3], width: f64) {
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let path = path.join(" ");
        writeln!(
            self.0,
            "<polyline points=\"{path}\" fill=\"none\" stroke=\"rgb({r},{g},{b})\" stroke-width=\"{width}\" \
             stroke-linejoin=\"round\"/>"
        )
        .expect("a string takes all text");
    }

    fn text(&mut self, x: f64, y: f64, text: &str, [r, g, b]: [u8; 3], anchor: Anchor) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let text = escape(text);
        writeln!(
            self.0,
            "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"rgb({r},{g},{b})\" text-anchor=\"{anchor}\">{text}</text>"
        )
        .expect("a string takes all text");
    }
}

/// Text that is no markup.
pub(crate) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
