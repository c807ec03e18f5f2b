//! One line that says how far training has come. Only on a terminal.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};
use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use thalweg::train::{Callback, Progress, VALIDATION_LOSS};

use crate::recipes::Length;

const PAUSE: Duration = Duration::from_millis(100);
/// Letters of the curve.
const WIDTH: usize = 12;

pub struct Bar {
    run: PathBuf,
    length: Length,
    quiet: bool,
    live: bool,
    drawn: Option<Instant>,
    curve: Curve,
    /// Set by Ctrl-C.
    stop: Arc<AtomicBool>,
}

impl Bar {
    pub fn new(run: PathBuf, length: Length, quiet: bool, stop: Arc<AtomicBool>) -> Self {
        let live = !quiet && has_line();
        Self { run, length, quiet, live, drawn: None, curve: Curve::default(), stop }
    }

    fn go_on(&self) -> ControlFlow<()> {
        if self.stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }
}

/// Whether there is a terminal whose last line can be replaced.
fn has_line() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Replaces the line, cut where the terminal ends instead of wrapped; a terminal that is gone is no reason to stop
/// training.
fn draw(line: &str) {
    let _ = write!(std::io::stderr(), "\r\x1b[K\x1b[?7l{line}\x1b[?7h");
    let _ = std::io::stderr().flush();
}

/// Takes the line away, for what is printed next.
pub fn clear() {
    if has_line() {
        draw("");
    }
}

impl<N> Callback<N> for Bar {
    fn begun(&mut self, _: u64) {
        if !self.quiet {
            // A reader that goes away is no reason not to train.
            let _ = writeln!(std::io::stdout(), "the run is in {}", self.run.display());
        }
    }

    fn resumed(&mut self, step: u64, passed_over: &[String]) {
        passed_over.iter().for_each(|reason| eprintln!("thalweg: {reason}"));
        if !self.quiet {
            let what = match step {
                0 => "nothing was saved yet: beginning again".to_owned(),
                step => format!("going on after step {step}"),
            };
            let _ = writeln!(std::io::stdout(), "{what}");
        }
    }

    fn after_step(&mut self, now: &Progress, _: &N) -> ControlFlow<()> {
        if self.live {
            self.curve.push(now.loss);
            if self.drawn.is_none_or(|t| t.elapsed() >= PAUSE) {
                draw(&line(now, self.length, &self.curve));
                self.drawn = Some(Instant::now());
            }
        }
        self.go_on()
    }

    fn measured(&mut self, now: &Progress, _: &N) -> ControlFlow<()> {
        if self.live {
            draw(&format!("{}  loss {:.4}  {}\n", place(now, self.length), now.loss, numbers(&now.metrics)));
        }
        self.go_on()
    }
}

/// What was measured, in words.
pub fn numbers(metrics: &BTreeMap<String, f64>) -> String {
    let word = |(name, value): (&String, &f64)| match name.as_str() {
        "accuracy" => format!("{:.2} % correct", 100.0 * value),
        VALIDATION_LOSS => format!("validation loss {value:.4}"),
        _ => format!("{name} {value:.4}"),
    };
    metrics.iter().map(word).collect::<Vec<_>>().join(", ")
}

/// Where training stands.
fn place(now: &Progress, length: Length) -> String {
    match length {
        // The last step of an epoch has begun the next one.
        Length::Epochs(n) => format!("epoch {:>2}/{n}", now.epoch),
        Length::Steps(n) => format!("step {:>4}/{n}", now.step),
    }
}

fn line(now: &Progress, length: Length, curve: &Curve) -> String {
    let share = 100 * now.step / now.steps.max(1);
    let left = now.eta() as u64;
    let place = match length {
        Length::Epochs(n) => format!("epoch {:>2}/{n}", (now.epoch + 1).min(n)),
        Length::Steps(_) => place(now, length),
    };
    format!(
        "{share:>3} %  {place}  {:.0} steps/s  {}:{:02} left  loss {:.4}  {}",
        now.rate(),
        left / 60,
        left % 60,
        now.loss,
        curve.text()
    )
}

/// The loss over the whole training in a few letters: each stands for equally many steps, and for twice as many when the
/// letters are used up.
#[derive(Default)]
struct Curve {
    means: Vec<f64>,
    sum: f64,
    count: u64,
    /// Steps per letter, less one.
    extra: u64,
}

impl Curve {
    fn push(&mut self, loss: f64) {
        (self.sum, self.count) = (self.sum + loss, self.count + 1);
        if self.count <= self.extra {
            return;
        }
        self.means.push(self.sum / self.count as f64);
        (self.sum, self.count) = (0.0, 0);
        if self.means.len() > WIDTH {
            let last = self.means.pop();
            self.means =
                self.means.chunks(2).map(|pair| pair.iter().sum::<f64>() / pair.len() as f64).collect();
            self.extra = 2 * self.extra + 1;
            self.sum = last.unwrap_or(0.0) * (self.extra.div_ceil(2)) as f64;
            self.count = self.extra.div_ceil(2);
        }
    }

    fn text(&self) -> String {
        const LETTERS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
        let (low, high) = self.means.iter().fold((f64::MAX, f64::MIN), |(l, h), &v| (l.min(v), h.max(v)));
        let height = |v: f64| (7.99 * (v - low) / (high - low).max(1e-12)) as usize;
        self.means.iter().map(|&v| LETTERS[height(v).min(7)]).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_curve_falls_with_the_loss_and_stays_short() {
        let mut curve = Curve::default();
        for step in 0..10_000 {
            curve.push(1.0 - f64::from(step) / 10_000.0);
            assert!(curve.means.len() <= WIDTH);
        }
        let text = curve.text();
        assert!(text.starts_with('█') && text.ends_with('▁'), "{text}");
        assert!(curve.means.windows(2).all(|w| w[0] > w[1]), "{:?}", curve.means);
    }

    #[test]
    fn the_line_fits_a_narrow_terminal() {
        let mut curve = Curve::default();
        (0..1000).for_each(|_| curve.push(2.0));
        let now = Progress {
            step: 99_999,
            steps: 1_000_000,
            epoch: 98,
            loss: 123.4567,
            metrics: Default::default(),
            own_steps: 99_999,
            own_seconds: 10.0,
        };
        for length in [Length::Epochs(100), Length::Steps(1_000_000)] {
            let text = line(&now, length, &curve);
            assert!(text.chars().count() < 80, "{text}");
        }
    }
}
