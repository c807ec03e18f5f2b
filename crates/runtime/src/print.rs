//! A plan for people: each step with its cost and the lines that it came from.

use std::fmt;
use std::panic::Location;

use thalweg_tensor::Meta;
use thalweg_tensor::ops::Cost;

use crate::plan::{Plan, StepInfo};

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} steps, arena {} ({} unplanned), {} flop",
            self.n_steps(),
            bytes(self.arena_bytes),
            bytes(self.unplanned_bytes),
            count(self.flops())
        )?;
        match self.recorded_flops {
            Some(before) if before > self.flops() => {
                writeln!(f, " ({} as written, {} saved)", count(before), count(before - self.flops()))?;
            }
            Some(before) if before < self.flops() => {
                let again = self.flops() - before;
                writeln!(f, " ({} as written, {} computed again)", count(before), count(again))?;
            }
            _ => writeln!(f)?,
        }
        self.steps().enumerate().try_for_each(|(i, step)| {
            writeln!(f, "{i:>4}  {step}")?;
            step.inside.iter().try_for_each(|line| writeln!(f, "      | {line}"))
        })
    }
}

impl fmt::Display for StepInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let results = self.results.iter().map(Meta::to_string).collect::<Vec<_>>().join(", ");
        let Cost { flops, bytes: moved } = self.cost;
        write!(f, "{:<40} {results}  {} flop, {}", self.name(), count(flops), bytes(moved as usize))?;
        let lines = self.source_lines();
        write!(f, "{}{}", if lines.is_empty() { "" } else { "  " }, lines.join(" "))
    }
}

impl StepInfo {
    /// The ops in short: `exp mul×3 add`.
    pub fn name(&self) -> String {
        shorten(&self.ops)
    }

    /// The user's lines as `file:line`, each once.
    pub fn source_lines(&self) -> Vec<String> {
        dedup(self.lines.iter().map(|at| format!("{}:{}", file(at), at.line())).collect())
    }
}

fn dedup(mut lines: Vec<String>) -> Vec<String> {
    let mut seen = std::collections::HashSet::new();
    lines.retain(|l| seen.insert(l.clone()));
    lines
}

fn file(at: &Location<'static>) -> &'static str {
    at.file().rsplit('/').next().unwrap_or_default()
}

/// `exp mul×3 add`, cut where it becomes long.
fn shorten(ops: &[String]) -> String {
    let mut words: Vec<String> = Vec::new();
    let mut i = 0;
    while i < ops.len() {
        let n = ops[i..].iter().take_while(|op| *op == &ops[i]).count();
        words.push(if n > 1 { format!("{}×{n}", ops[i]) } else { ops[i].clone() });
        i += n;
    }
    if words.len() > 8 {
        let rest = words.len() - 7;
        words.truncate(7);
        words.push(format!("… {rest} more"));
    }
    words.join(" ")
}

pub(crate) fn bytes(n: usize) -> String {
    match n {
        0..1024 => format!("{n} B"),
        1024..1_048_576 => format!("{:.1} KiB", n as f64 / 1024.0),
        _ => format!("{:.1} MiB", n as f64 / 1_048_576.0),
    }
}

pub(crate) fn count(n: u64) -> String {
    match n {
        0..1000 => n.to_string(),
        1000..1_000_000 => format!("{:.1} k", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} M", n as f64 / 1e6),
        _ => format!("{:.2} G", n as f64 / 1e9),
    }
}
