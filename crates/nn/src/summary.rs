//! What a model consists of, as a table: outputs, parameters, work.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fmt;
use std::panic::Location;

use thalweg_core::Shape;
use thalweg_tensor::{CallerLine, Meter, Tensor};

use crate::module::{Identity, Module, Part, Visitor};

/// One module.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its path; empty for the whole.
    pub name: String,
    /// The name of its type.
    pub kind: String,
    /// The shape of its last output, if it was seen to run.
    pub output: Option<Shape>,
    /// The trained numbers in it.
    pub n_params: usize,
    /// Of these, the frozen ones.
    pub n_frozen: usize,
    /// Floating-point operations seen in it.
    pub flops: u64,
}

/// A table of all modules; printed, it is meant for people.
#[derive(Debug, Clone, PartialEq)]
pub struct Summary {
    /// One row per module, outer ones first.
    pub rows: Vec<Row>,
    /// Floating-point operations of the whole run, inside of layers and between them.
    pub flops: u64,
}

/// See [`Module::summary`].
pub(crate) fn summarize<M: Module>(module: &M, forward: impl FnOnce() -> Tensor) -> Summary {
    WATCHED.with(|w| *w.borrow_mut() = Some(HashMap::new()));
    // Taken back even when `forward` panics.
    struct Stop;
    impl Drop for Stop {
        fn drop(&mut self) {
            WATCHED.with(|w| *w.borrow_mut() = None);
        }
    }
    let stop = Stop;
    let meter = Meter::start();
    let result = forward();
    let flops = meter.stop().flops;
    let seen = WATCHED.with(|w| w.borrow_mut().take()).unwrap_or_default();
    drop(stop);
    let mut rows = vec![Row {
        name: String::new(),
        kind: module.kind(),
        output: Some(result.shape().clone()),
        n_params: 0,
        n_frozen: 0,
        flops,
    }];
    let mut counted = std::collections::HashSet::new();
    module.visit(&mut Visitor::new(&mut |path, part| match part {
        Part::Module(identity) => {
            let seen = seen.get(&identity).cloned().unwrap_or_default();
            let (name, kind) = (path.to_owned(), identity.kind);
            // A wrapper and what it holds are one row.
            rows.retain(|r| r.name != name || name.is_empty());
            rows.push(Row { name, kind, output: seen.output, n_params: 0, n_frozen: 0, flops: seen.flops });
        }
        Part::Param(param) if !param.is_state() && counted.insert(param.id()) => {
            let n = param.meta().numel();
            for row in rows.iter_mut().filter(|r| holds(&r.name, path)) {
                row.n_params += n;
                row.n_frozen += if param.is_frozen() { n } else { 0 };
            }
        }
        _ => {}
    }));
    let leaf = |r: &Row| matches!(r.kind.as_str(), "Param" | "Mode" | "Noise");
    let shown = |r: &Row| r.name.is_empty() || (!leaf(r) && (r.n_params > 0 || r.output.is_some()));
    rows.retain(shown);
    add_up(&mut rows);
    Summary { rows, flops }
}

/// A module that was not seen to run itself did what its parts did.
fn add_up(rows: &mut [Row]) {
    for i in (0..rows.len()).rev() {
        if rows[i].output.is_none() {
            let own = rows[i].name.clone();
            let child = |r: &Row| {
                holds(&own, &r.name) && r.name.strip_prefix(&own).is_some_and(|p| p.starts_with('.'))
            };
            // Only the outermost ones: they include the rest.
            let children: Vec<usize> = (i + 1..rows.len()).filter(|&j| child(&rows[j])).collect();
            let outermost = |&j: &usize| {
                !children
                    .iter()
                    .any(|&k| k != j && rows[k].output.is_some() && inside(&rows[j].name, &rows[k].name))
            };
            rows[i].flops = children
                .iter()
                .filter(|&j| rows[*j].output.is_some() && outermost(j))
                .map(|&j| rows[j].flops)
                .sum();
        }
    }
}

/// Whether a path leads into, or is, the module of that name.
fn holds(name: &str, path: &str) -> bool {
    name.is_empty() || path == name || inside(path, name)
}

fn inside(path: &str, name: &str) -> bool {
    path.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<[String; 4]> = self.rows.iter().map(line).collect();
        let head = ["layer", "output", "params", "FLOPs"].map(str::to_owned);
        let mut widths = [0; 4];
        for line in lines.iter().chain([&head]) {
            widths.iter_mut().zip(line).for_each(|(w, cell)| *w = (*w).max(cell.chars().count()));
        }
        let [a, b, c, d] = widths;
        let rule = "─".repeat(a + b + c + d + 6);
        writeln!(f, "{:<a$}  {:<b$}  {:>c$}  {:>d$}\n{rule}", head[0], head[1], head[2], head[3])?;
        for line in &lines {
            writeln!(f, "{:<a$}  {:<b$}  {:>c$}  {:>d$}", line[0], line[1], line[2], line[3])?;
        }
        let whole = &self.rows[0];
        write!(f, "{rule}\n{} parameters", grouped(whole.n_params as u64))?;
        if whole.n_frozen > 0 {
            write!(f, " ({} frozen)", grouped(whole.n_frozen as u64))?;
        }
        write!(f, ", {} FLOPs", grouped(self.flops))
    }
}

fn line(row: &Row) -> [String; 4] {
    let depth = if row.name.is_empty() { 0 } else { 1 + row.name.matches('.').count() };
    let name = row.name.rsplit('.').next().unwrap_or_default();
    let label = match name {
        "" => row.kind.clone(),
        name => format!("{}{name} ({})", "  ".repeat(depth), row.kind),
    };
    let output = row.output.as_ref().map_or_else(String::new, Shape::to_string);
    let count = |n: u64| if n == 0 { String::new() } else { grouped(n) };
    [label, output, count(row.n_params as u64), count(row.flops)]
}

/// 1234567 as 1,234,567.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(c);
    }
    out
}

#[derive(Clone, Default)]
struct Seen {
    output: Option<Shape>,
    flops: u64,
}

thread_local! {
    static WATCHED: RefCell<Option<HashMap<Identity, Seen>>> = const { RefCell::new(None) };
}

/// The run of one layer, for [`summarize`]; costs one look at a thread's variable when none is made. A
/// guard and not a closure, so that an error inside still names the caller's line.
pub(crate) struct Frame {
    meter: Option<Meter>,
    _line: CallerLine,
}

impl Frame {
    #[track_caller]
    pub fn open() -> Self {
        let meter = WATCHED.with(|w| w.borrow().is_some()).then(Meter::start);
        Self { meter, _line: caller_line(Location::caller()) }
    }

    /// Ends the run of `module` and hands its output on.
    pub fn close<M: Module>(self, module: &M, output: Tensor) -> Tensor {
        if let Some(meter) = self.meter {
            let flops = meter.stop().flops;
            WATCHED.with(|w| {
                if let Some(seen) = w.borrow_mut().as_mut() {
                    let entry = seen.entry(Identity::of(module)).or_default();
                    entry.output = Some(output.shape().clone());
                    entry.flops += flops;
                }
            });
        }
        output
    }
}

/// What this library applies while the guard lives belongs to a line of its user.
pub(crate) fn caller_line(at: &'static Location<'static>) -> CallerLine {
    CallerLine::set(at, file!().trim_end_matches("summary.rs"))
}

#[cfg(test)]
mod tests {
    use thalweg_tensor::{Rng, Tensor};

    use crate::{Layer, Linear, Module};

    #[derive(Module)]
    struct Pair {
        first: Linear,
        second: Linear,
    }

    #[derive(Module)]
    struct Net {
        pair: Pair,
        last: Linear,
    }

    #[test]
    fn parts_add_up_to_the_whole() {
        let rng = &mut Rng::seed(0);
        let net = Net {
            pair: Pair { first: Linear::new(4, 3, rng), second: Linear::without_bias(3, 3, rng) },
            last: Linear::new(3, 2, rng),
        };
        net.last.freeze();
        let x = Tensor::from([[1.0f32; 4]; 5]);
        let run = || net.last.forward(&net.pair.second.forward(&net.pair.first.forward(&x)).relu());
        let table = net.summary(run);
        let names: Vec<&str> = table.rows.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, ["", "pair", "pair.first", "pair.second", "last"]);
        let row = |i: usize| (table.rows[i].n_params, table.rows[i].flops);
        let dense = |i: u64, o: u64| 5 * o * 2 * i;
        assert_eq!(row(2), (15, dense(4, 3)));
        assert_eq!(row(1), (24, dense(4, 3) + dense(3, 3)));
        assert_eq!(row(4), (8, dense(3, 2)));
        assert_eq!(table.rows[0].n_frozen, 8);
        // The activation between the layers counts too.
        assert_eq!(table.flops, dense(4, 3) + dense(3, 3) + dense(3, 2) + 15);
        let text = table.to_string();
        assert!(text.contains("  pair (Pair)") && text.contains("    first (Linear)"), "{text}");
        assert!(text.ends_with("32 parameters (8 frozen), 285 FLOPs"), "{text}");
    }
}
