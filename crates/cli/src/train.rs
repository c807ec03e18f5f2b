//! `thalweg train` and `thalweg resume`.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, Result};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use thalweg::train::{Ended, Fitted, Run};

use crate::job::{Job, Settings, Task};
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
    /// Where random numbers begin; equal seeds give equal bits.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// The file or folder of the data, where they are not inside.
    #[arg(long, value_name = "PATH")]
    data: Option<PathBuf>,
    /// Use only the first so many samples, for a quick look.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    samples: Option<u32>,
    /// The folder of the run [default: runs/RECIPE, or the next free runs/RECIPE-2, ...].
    #[arg(long)]
    out: Option<PathBuf>,
    #[command(flatten)]
    how: How,
}

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
        batch: args.batch.map_or(defaults.batch, |n| n as usize),
        lr: args.lr.unwrap_or(defaults.lr),
        seed: args.seed,
        samples: args.samples.map(|n| n as usize),
        data: args.data.as_ref().map(absolute).transpose()?,
    };
    let out = args.out.clone().unwrap_or_else(|| free(args.recipe.name));
    start(args.recipe, settings, out, false, &args.how)
}

pub fn resume(run: &Path, how: &How) -> Result<()> {
    let (settings, recipe) = Settings::of(run)?;
    if let Some(summary) = Run::summary_of(run)? {
        let fitted: Fitted =
            serde_json::from_value(summary).with_context(|| format!("{}: summary.json", run.display()))?;
        if !how.json {
            writeln!(std::io::stdout(), "{} is finished; there is nothing left to resume", run.display())?;
        }
        return report(&fitted, run, how.json);
    }
    start(recipe, settings, run.to_owned(), true, how)
}

fn start(recipe: &'static Recipe, settings: Settings, out: PathBuf, resume: bool, how: &How) -> Result<()> {
    if let Some(threads) = how.threads {
        thalweg::set_threads(usize::from(threads));
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The second one ends at once; the order of these two lines makes it the second.
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    (recipe.run)(&Job { recipe, settings, task: Task::Train { resume }, out, json: how.json, stop })
}

/// The result, and what to type next.
pub fn report(fitted: &Fitted, run: &Path, as_json: bool) -> Result<()> {
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

/// The first folder under `runs` that holds no run yet.
fn free(name: &str) -> PathBuf {
    let numbered = (2..).map(|i| Path::new("runs").join(format!("{name}-{i}")));
    let mut candidates = std::iter::once(Path::new("runs").join(name)).chain(numbered);
    candidates.find(|p| !p.exists()).expect("there are numbers enough")
}
