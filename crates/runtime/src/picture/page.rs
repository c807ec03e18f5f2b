//! The page: sizes of boxes, and SVG.

use std::fmt::Write as _;

use super::layout::Drawing;
use super::{Card, CardKind, Wire};
use crate::plan::Plan;
use crate::print::{bytes, count};

/// Width of a character, height of a line; the font is monospaced.
const CHAR: f64 = 6.7;
const LINE: f64 = 15.0;
const PAD: f64 = 9.0;
/// Characters in a line of a box.
const WRAP: usize = 30;
/// Lines of ops that a box shows; the rest is told when the pointer is over it.
const MAX_LINES: usize = 8;

/// What a box looks like.
pub(super) struct Size {
    pub width: f64,
    pub height: f64,
    /// Ops, line by line.
    ops: Vec<String>,
    /// Coloured labels: class and text, line by line.
    chips: Vec<Vec<(&'static str, String)>>,
}

pub(super) fn measure(card: &Card) -> Size {
    let mut ops = wrapped(&runs(&card.ops));
    ops.extend(card.inside.iter().map(|line| step_name(line)));
    if ops.len() > MAX_LINES {
        let rest = ops.len() - MAX_LINES + 1;
        ops.truncate(MAX_LINES - 1);
        ops.push(format!("… {rest} more lines"));
    }
    let labels = card
        .reads
        .iter()
        .filter(|name| !card.writes.contains(name))
        .map(|name| ("param", name.clone()))
        .chain(card.writes.iter().map(|name| ("written", format!("{name} ←"))))
        .chain(card.results.iter().map(|name| ("result", format!("→ {name}"))));
    let mut chips: Vec<Vec<(&'static str, String)>> = Vec::new();
    let length = |row: &[(&str, String)]| row.iter().map(|(_, t)| t.chars().count() + 3).sum::<usize>();
    for (class, text) in labels {
        let text = shortened(&text, WRAP);
        match chips.last_mut() {
            Some(row) if length(row) + text.chars().count() + 3 <= WRAP + 4 => row.push((class, text)),
            _ => chips.push(vec![(class, text)]),
        }
    }
    let widest = ops
        .iter()
        .map(|l| l.chars().count())
        .chain(chips.iter().map(|row| length(row)))
        .chain([card.title.chars().count() + 1, cost(card).chars().count()])
        .max()
        .unwrap_or(0);
    let n_lines = 1 + ops.len() + usize::from(!cost(card).is_empty());
    let height = 2.0 * PAD + n_lines as f64 * LINE + chips.len() as f64 * (LINE + 4.0);
    Size { width: (widest as f64 * CHAR + 2.0 * PAD).max(70.0), height, ops, chips }
}

/// Where each value leaves its box, from the middle: side by side. Boxes are widened where the shapes,
/// which stand to the right of the wires, would not fit.
pub(super) fn ports(sizes: &mut [Size], wires: &[Wire]) -> Vec<f64> {
    let mut ports = vec![0.0; wires.len()];
    for (from, size) in sizes.iter_mut().enumerate() {
        let own: Vec<usize> = (0..wires.len()).filter(|&w| wires[w].from == from).collect();
        let room = |w: usize| wires[w].shape.chars().count() as f64 * 5.8 + 14.0;
        match own[..] {
            // In the middle; the shape may reach a little beyond the box.
            [only] => size.width = size.width.max(2.0 * (room(only) - 24.0)),
            _ => {
                let total: f64 = own.iter().map(|&w| room(w)).sum();
                size.width = size.width.max(total);
                let mut at = -size.width / 2.0 + 8.0;
                let spare = (size.width - total) / own.len().max(1) as f64;
                for &w in &own {
                    ports[w] = at;
                    at += room(w) + spare;
                }
            }
        }
    }
    ports
}

fn cost(card: &Card) -> String {
    match card.kind {
        CardKind::Input => String::new(),
        _ => format!("{} flop · {}", count(card.cost.flops), bytes(card.cost.bytes as usize)),
    }
}

/// `mul`, `mul`, `add` as `mul×2`, `add`.
fn runs(ops: &[String]) -> Vec<String> {
    ops.chunk_by(|a, b| a == b)
        .map(|run| if run.len() > 1 { format!("{}×{}", run[0], run.len()) } else { run[0].clone() })
        .collect()
}

/// The beginning of a line of a plan: what the step runs, without its result and cost.
fn step_name(line: &str) -> String {
    let indent = line.len() - line.trim_start().len();
    let name = line[indent..].split("  ").next().unwrap_or_default();
    let name: String = name.chars().take(WRAP - indent.min(WRAP)).collect();
    // Spaces at the beginning of a text are not drawn.
    format!("{}{name}", "\u{a0}".repeat(indent))
}

fn wrapped(words: &[String]) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in words {
        match lines.last_mut() {
            Some(line) if line.chars().count() + 1 + word.chars().count() <= WRAP => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.clone()),
        }
    }
    lines
}

/// The end of a long name says more than its beginning.
fn shortened(text: &str, max: usize) -> String {
    let n = text.chars().count();
    if n <= max {
        text.to_owned()
    } else {
        format!("…{}", text.chars().skip(n - max + 1).collect::<String>())
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

pub(super) fn render(
    title: &str,
    plan: &Plan,
    cards: &[Card],
    sizes: &[Size],
    wires: &[Wire],
    drawing: &Drawing,
) -> String {
    let mut svg = String::new();
    for (wire, paths) in wires.iter().zip(&drawing.wires) {
        for (to, points) in wire.to.iter().zip(paths) {
            let class = if cards[wire.from].kind == CardKind::Input { "wire from-input" } else { "wire" };
            let _ = writeln!(
                svg,
                "<path class=\"{class}\" data-ends=\"{} {to}\" d=\"{}\"><title>{}</title></path>",
                wire.from,
                path(points),
                escaped(&format!("{} → {}: {}", cards[wire.from].title, cards[*to].title, wire.shape))
            );
        }
        if let Some(&(x, y)) = paths.first().and_then(|p| p.first()) {
            let _ = writeln!(
                svg,
                "<text class=\"shape\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                x + 4.0,
                y + 11.0,
                escaped(&wire.shape)
            );
        }
    }
    let most = cards.iter().map(|c| c.cost.flops).max().unwrap_or(0).max(1) as f64;
    for (i, ((card, size), &(x, y))) in cards.iter().zip(sizes).zip(&drawing.blocks).enumerate() {
        svg.push_str(&block(i, card, size, x, y, card.cost.flops as f64 / most));
    }
    let header = plan.to_string();
    let header = header.lines().next().unwrap_or_default();
    format!(
        include_str!("page.html"),
        title = escaped(title),
        summary = escaped(header),
        width = drawing.width.ceil(),
        height = drawing.height.ceil(),
        svg = svg
    )
}

/// One box.
fn block(i: usize, card: &Card, size: &Size, x: f64, y: f64, share: f64) -> String {
    let class = match card.kind {
        CardKind::Input => "input",
        CardKind::Single => "single",
        CardKind::Fused => "fused",
        CardKind::Copy => "copy",
    };
    let mut info = vec![card.title.clone()];
    info.extend(wrapped(&runs(&card.ops)));
    info.extend(
        [("reads ", &card.reads), ("writes ", &card.writes), ("gives ", &card.results)]
            .iter()
            .filter(|(_, l)| !l.is_empty())
            .map(|(w, l)| format!("{w}{}", l.join(", "))),
    );
    info.extend(card.inside.iter().cloned());
    info.push(cost(card));
    info.extend(card.lines.iter().cloned());
    let (w, h) = (size.width, size.height);
    let mut out = format!("<g class=\"{class}\" data-box=\"{i}\" transform=\"translate({x:.1} {y:.1})\">");
    let _ = write!(
        out,
        "<title>{}</title><rect width=\"{w:.1}\" height=\"{h:.1}\" rx=\"6\"/>",
        escaped(&info.join("\n"))
    );
    if share > 0.0 {
        let _ = write!(
            out,
            "<rect class=\"work\" x=\"1\" y=\"{:.1}\" height=\"4\" width=\"{:.1}\" rx=\"2\"/>",
            h - 5.0,
            (w - 2.0) * share
        );
    }
    let mut at = PAD + LINE - 4.0;
    let mut line = |out: &mut String, class: &str, text: &str| {
        let _ = write!(out, "<text class=\"{class}\" x=\"{PAD}\" y=\"{at:.1}\">{}</text>", escaped(text));
        at += LINE;
    };
    line(&mut out, "head", &card.title);
    size.ops.iter().for_each(|l| line(&mut out, "ops", l));
    if !cost(card).is_empty() {
        line(&mut out, "cost", &cost(card));
    }
    let mut top = at - LINE + 6.0;
    for row in &size.chips {
        let mut left = PAD;
        for (class, text) in row {
            let width = text.chars().count() as f64 * 6.1 + 10.0;
            let _ = write!(
                out,
                "<rect class=\"chip {class}\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{width:.1}\" height=\"15\" rx=\"7\"/>\
                 <text class=\"chip\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                left + 5.0,
                top + 11.0,
                escaped(text)
            );
            left += width + 5.0;
        }
        top += LINE + 4.0;
    }
    out + "</g>\n"
}

/// A smooth line through points: straight along the boxes of a rank, curved between ranks.
fn path(points: &[(f64, f64)]) -> String {
    let mut d = format!("M{:.1} {:.1}", points[0].0, points[0].1);
    for pair in points.windows(2) {
        let ((x0, y0), (x1, y1)) = (pair[0], pair[1]);
        if (x0 - x1).abs() < 0.05 {
            let _ = write!(d, "V{y1:.1}");
        } else {
            let middle = (y0 + y1) / 2.0;
            let _ = write!(d, "C{x0:.1} {middle:.1} {x1:.1} {middle:.1} {x1:.1} {y1:.1}");
        }
    }
    d
}
