//! `thalweg train` and `thalweg resume`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result, ensure};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use thalweg::cluster::net::config::{Config, Part};
use thalweg::train::{Ended, Fitted, Run};

use crate::job::{Job, Settings, Task};
use crate::launch::LAUNCHED;
use crate::progress::numbers;
use crate::recipes::{self, Length, Recipe};

#[derive(clap::Args)]
pub struct Args {
    /// What to train.
    #[arg(value_parser = PossibleValuesParser::new(recipes::names()).map(|n| recipes::find(&n).expect("a possible value")))]
    recipe: &'static Recipe,
    /// Passes over the data [default: the recipe's].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), allow_negative_numbers = true)]
    epochs: Option<u64>,
    /// Steps, instead of passes.
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..), allow_negative_numbers = true, conflicts_with = "epochs")]
    steps: Option<u64>,
    /// Samples of a step [default: the recipe's].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    batch: Option<u32>,
    /// Learning rate [default: the recipe's].
    #[arg(long, value_parser = positive, allow_negative_numbers = true)]
    lr: Option<f64>,
    /// Groups, factors or topics to look for [default: the recipe's].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    components: Option<u32>,
    /// What large weights cost [default: the recipe's].
    #[arg(long, value_parser = positive, allow_negative_numbers = true)]
    penalty: Option<f64>,
    /// Where random numbers begin; equal seeds give equal bits.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The file or folder of the data, where they are not inside.
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// Use only the first so many samples, for a quick look.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    samples: Option<u32>,
    /// Divide every batch into so many parts and add up their gradients in order, as so many workers of a cluster would:
    /// with the same slots a process alone and a cluster come to the same bits. Under `thalweg launch` say it there.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=4096), allow_negative_numbers = true)]
    slots: Option<u32>,
    /// The folder of the run [default: runs/RECIPE, or the next free runs/RECIPE-2, ...; under `thalweg launch`
    /// runs/RECIPE-TIME].
    #[arg(long)]
    out: Option<PathBuf>,
    #[command(flatten)]
    how: How,
}

/// The status with which a process ends that was asked to and has saved its run.
pub const STOPPED: i32 = 130;

/// Flags that change nothing in the result.
#[derive(clap::Args)]
pub struct How {
    /// Print the result as one JSON object, and nothing else: accuracy, losses, seconds, steps_per_second, weights_sha256.
    #[arg(long)]
    json: bool,
    /// Threads to use.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..), allow_negative_numbers = true)]
    threads: Option<u16>,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(v) if v.is_finite() && v > 0.0 => Ok(v),
        _ => Err("a number above 0 is needed, such as 0.001".to_owned()),
    }
}

impl Args {
    /// What was given, or the recipe's own choice. Refuses what the recipe has no use for.
    fn chosen<T>(&self, flag: &str, given: Option<T>, default: Option<T>) -> Result<Option<T>> {
        ensure!(given.is_none() || default.is_some(), "{} has no {flag}", self.recipe.name);
        Ok(given.or(default))
    }
}

pub fn run(args: &Args) -> Result<()> {
    let defaults = &args.recipe.defaults;
    let (epochs, steps) = match (args.epochs, args.steps, defaults.length) {
        (None, None, Length::Epochs(n)) => (Some(n), None),
        (None, None, Length::Steps(n)) => (None, Some(n)),
        (epochs, steps, _) => (epochs, steps),
    };
    // A run may be resumed from another folder.
    let absolute = |p: &PathBuf| p.canonicalize().with_context(|| format!("--data {}", p.display()));
    let settings = Settings {
        recipe: args.recipe.name.to_owned(),
        epochs,
        steps,
        batch: args.chosen("--batch", args.batch.map(|n| n as usize), defaults.batch)?,
        lr: args.chosen("--lr", args.lr, defaults.lr)?,
        components: args.chosen("--components", args.components.map(|n| n as usize), defaults.components)?,
        penalty: args.chosen("--penalty", args.penalty, defaults.penalty)?,
        seed: args.seed,
        samples: args.samples.map(|n| n as usize),
        slots: args.slots.map(|n| n as usize),
        sync: None,
        data: args.data.as_ref().map(absolute).transpose()?,
    };
    let out = args.out.clone().map_or_else(|| folder(args.recipe.name), Ok)?;
    let started = start(args.recipe, settings, out.clone(), false, &args.how);
    if started.is_err() && args.out.is_none() {
        // Only what nothing was written to goes.
        let _ = std::fs::remove_dir(&out).and_then(|()| std::fs::remove_dir(RUNS));
    }
    started
}

pub fn resume(run: &Path, how: &How) -> Result<()> {
    let (settings, recipe) = Settings::of(run)?;
    if let Some(summary) = Run::summary_of(run)? {
        let fitted: Fitted =
            serde_json::from_value(summary).with_context(|| format!("{}: summary.json", run.display()))?;
        if !how.json {
            writeln!(std::io::stdout(), "{} is finished; there is nothing left to resume", run.display())?;
        }
        return report(&fitted, None, run, how.json);
    }
    start(recipe, settings, run.to_owned(), true, how)
}

fn start(recipe: &'static Recipe, settings: Settings, out: PathBuf, resume: bool, how: &How) -> Result<()> {
    if let Some(threads) = how.threads {
        thalweg::set_threads(usize::from(threads));
    }
    let stop = Arc::new(AtomicBool::new(false));
    // In a cluster a signal asks a process to leave, not the training to end: that is the cluster's affair.
    let signals = if is_alone()? { &[SIGINT, SIGTERM][..] } else { &[] };
    for &signal in signals {
        // The second one ends at once; the order of these two lines makes it the second.
        signal_hook::flag::register_conditional_shutdown(signal, STOPPED, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    (recipe.run)(&Job { recipe, settings, task: Task::Train { resume }, out, json: how.json, stop })
}

/// The result, on a cluster with the bytes that this worker received and sent, and what to type next.
pub fn report(fitted: &Fitted, traffic: Option<[u64; 2]>, run: &Path, as_json: bool) -> Result<()> {
    let mut out = std::io::stdout();
    if as_json {
        let mut line = json!({
            "run": run, "ended": fitted.ended, "accuracy": fitted.metrics.get("accuracy"), "loss": fitted.loss,
            "seconds": fitted.seconds, "steps": fitted.steps, "steps_per_second": fitted.steps_per_second,
            "weights_sha256": fitted.weights,
        });
        for (name, value) in &fitted.metrics {
            line[name.replace('/', "_")] = json!(value);
        }
        if let Some([received, sent]) = traffic {
            (line["received_bytes"], line["sent_bytes"]) = (json!(received), json!(sent));
        }
        writeln!(out, "{line}")?;
        return Ok(());
    }
    let (command, run) = (command(), run.display());
    if fitted.ended == Ended::Stopped {
        writeln!(
            out,
            "stopped after {} steps; everything is saved. To go on:\n  {command} resume {run}",
            fitted.steps
        )?;
        if traffic.is_some() {
            writeln!(out, "or on a cluster again:\n  {command} launch OPTIONS -- {command} resume {run}")?;
        }
        return Ok(());
    }
    writeln!(
        out,
        "{}\n{} steps in {:.1} s ({:.1} steps/s)",
        numbers(&fitted.metrics),
        fitted.steps,
        fitted.seconds,
        fitted.steps_per_second
    )?;
    writeln!(
        out,
        "Next:\n  {command} predict {run}     see it at work\n  {command} report {run}      a page with its curves"
    )?;
    Ok(())
}

/// How the user called this command.
pub fn command() -> &'static str {
    if std::env::var_os("CARGO").is_some() { "cargo run --release --" } else { "thalweg" }
}

fn is_alone() -> Result<bool> {
    Ok(Config::from_env()?.part == Part::Alone)
}

/// Where runs go that are not told where.
const RUNS: &str = "runs";

/// Where the run goes: the first folder under `runs` that is not there yet, and is then, so that another that begins at the
/// same time finds another. All processes of a cluster must come to the same one, so there the launcher has said by what it
/// differs from others.
fn folder(name: &str) -> Result<PathBuf> {
    let runs = Path::new(RUNS);
    if !is_alone()? {
        let launched =
            std::env::var(LAUNCHED).context("say --out FOLDER, which all processes of the cluster see")?;
        return Ok(runs.join(format!("{name}-{launched}")));
    }
    let numbered = (2..).map(|i| runs.join(format!("{name}-{i}")));
    std::fs::create_dir_all(runs).with_context(|| format!("create {RUNS}"))?;
    for path in std::iter::once(runs.join(name)).chain(numbered) {
        match std::fs::create_dir(&path) {
            Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path.clone()).with_context(|| format!("create {}", path.display())),
        }
    }
    unreachable!("there are numbers enough")
}
