//! `thalweg train` and `thalweg resume`.

mod progress;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, bail};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use serde::{Deserialize, Serialize};
use serde_json::json;
use signal_hook::consts::{SIGINT, SIGTERM};
use thalweg::data::Dataset;
use thalweg::schedule::Schedule;
use thalweg::train::{Ended, Epochs, Fitted, Run, Trainer};
use thalweg::{Layer, Module, Optimizer, Rng, Rule, Sequential, Tensor, hit_rate};

use crate::recipes::{self, Recipe, Split};
use progress::Bar;

#[derive(clap::Args)]
pub struct Args {
    /// What to train.
    #[arg(value_parser = PossibleValuesParser::new(recipes::names()).map(|n| recipes::find(&n).expect("a possible value")))]
    recipe: &'static Recipe,
    /// Passes over the data [default: the recipe's].
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    epochs: Option<u64>,
    /// Samples of a step [default: the recipe's].
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    batch: Option<u32>,
    /// Learning rate [default: the recipe's].
    #[arg(long, value_parser = positive, allow_negative_numbers = true)]
    lr: Option<f64>,
    /// Where random numbers begin; equal seeds give equal bits.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Use only the first so many samples, for a quick look.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
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
    /// Print the result as one JSON object, and nothing else.
    #[arg(long)]
    json: bool,
    /// Threads to use.
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    threads: Option<u16>,
}

fn positive(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(v) if v.is_finite() && v > 0.0 => Ok(v),
        _ => Err("a number above 0 is needed, such as 0.001".to_owned()),
    }
}

/// Everything that decides what comes out: the `config.json` of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    pub recipe: String,
    pub epochs: u64,
    pub batch: usize,
    pub lr: f64,
    pub seed: u64,
    pub samples: Option<usize>,
}

impl Settings {
    /// Of a run that this command made.
    pub fn of(run: &Path) -> Result<(Self, &'static Recipe)> {
        let config = Run::config_of(run)?;
        let made =
            serde_json::from_value::<Self>(config).ok().and_then(|s| Some((recipes::find(&s.recipe)?, s)));
        let Some((recipe, settings)) = made else {
            bail!("{} was not made by `thalweg train`: its config.json names no recipe", run.display());
        };
        Ok((settings, recipe))
    }

    /// The data of the recipe, as far as they are used.
    pub fn data(&self, recipe: &Recipe) -> Result<Split> {
        let all = (recipe.data)()?;
        let Some(n) = self.samples else { return Ok(all) };
        let (train, test) = (n.min(all.train.len()), n.min(all.test.len()));
        Ok(Split { train: all.train.rows(0..train), test: all.test.rows(0..test) })
    }
}

/// One training, as a recipe sees it.
pub struct Job {
    pub settings: Settings,
    out: PathBuf,
    resume: bool,
    quiet: bool,
    stop: Arc<AtomicBool>,
}

impl Job {
    /// The steps of the whole training.
    pub fn steps(&self, train: &impl Dataset) -> u64 {
        train.batches(self.settings.batch).steps() as u64 * self.settings.epochs
    }

    /// Trains a classifier.
    pub fn fit<R: Rule>(
        &self,
        net: Sequential,
        optimizer: Optimizer<R>,
        schedule: impl Schedule + 'static,
        train: impl Dataset<Batch = (Tensor, Tensor)>,
        test: impl Dataset<Batch = (Tensor, Tensor)>,
    ) -> Result<Fitted> {
        let Settings { epochs, batch, seed, .. } = self.settings;
        let mut trainer = Trainer::new(net, optimizer, |net, (x, y)| net.forward(&x).cross_entropy(&y))
            .metric("accuracy", |net, (x, y)| hit_rate(&net.forward(&x), &y))
            .validate(test.batches(500))
            .schedule(schedule)
            .checkpoint_every(Epochs(1), &self.out)
            .resume(self.resume)
            .config(&self.settings)
            .callback(Bar::new(epochs, self.quiet, self.stop.clone()));
        Ok(trainer.fit(train.batches(batch).seed(seed), Epochs(epochs))?)
    }
}

pub fn run(args: &Args) -> Result<()> {
    let defaults = &args.recipe.defaults;
    let settings = Settings {
        recipe: args.recipe.name.to_owned(),
        epochs: args.epochs.unwrap_or(defaults.epochs),
        batch: args.batch.map_or(defaults.batch, |n| n as usize),
        lr: args.lr.unwrap_or(defaults.lr),
        seed: args.seed,
        samples: args.samples.map(|n| n as usize),
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
            println!("{} is finished; there is nothing left to resume", run.display());
        }
        return report(&fitted, run, how);
    }
    start(recipe, settings, run.to_owned(), true, how)
}

fn start(recipe: &Recipe, settings: Settings, out: PathBuf, resume: bool, how: &How) -> Result<()> {
    if let Some(threads) = how.threads {
        thalweg::set_threads(usize::from(threads));
    }
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // The second one ends at once; the order of these two lines makes it the second.
        signal_hook::flag::register_conditional_shutdown(signal, 130, stop.clone())?;
        signal_hook::flag::register(signal, stop.clone())?;
    }
    let data = settings.data(recipe)?;
    let net = (recipe.net)(&mut Rng::seed(settings.seed));
    if !how.json {
        println!("{}: {}", recipe.name, recipe.about);
        println!(
            "{} parameters, {} samples, {} epochs in batches of {}; the run is in {}",
            net.n_params(),
            data.train.len(),
            settings.epochs,
            settings.batch,
            out.display()
        );
    }
    let job = Job { settings, out, resume, quiet: how.json, stop };
    let fitted = (recipe.fit)(&job, net, data)?;
    report(&fitted, &job.out, how)?;
    if fitted.ended == Ended::Stopped && job.stop.load(Ordering::Relaxed) {
        std::process::exit(130);
    }
    Ok(())
}

/// The result, and what to type next.
fn report(fitted: &Fitted, run: &Path, how: &How) -> Result<()> {
    if how.json {
        let line = json!({
            "run": run, "ended": fitted.ended, "accuracy": fitted.metrics.get("accuracy"), "loss": fitted.loss,
            "seconds": fitted.seconds, "steps": fitted.steps, "steps_per_second": fitted.steps_per_second,
            "weights_sha256": fitted.weights,
        });
        println!("{line}");
        return Ok(());
    }
    let (command, run) = (command(), run.display());
    if fitted.ended == Ended::Stopped {
        println!(
            "stopped after {} steps; everything is saved. To go on:\n  {command} resume {run}",
            fitted.steps
        );
        return Ok(());
    }
    let accuracy = fitted.metrics.get("accuracy").copied().unwrap_or(f64::NAN);
    println!(
        "{:.2} % correct after {} steps in {:.1} s ({:.1} steps/s)",
        100.0 * accuracy,
        fitted.steps,
        fitted.seconds,
        fitted.steps_per_second
    );
    println!(
        "Next:\n  {command} predict {run}     see it at work\n  {command} report {run}      a page with its curves"
    );
    Ok(())
}

/// How the user called this command.
fn command() -> &'static str {
    if std::env::var_os("CARGO").is_some() { "cargo run --release --" } else { "thalweg" }
}

/// The first folder under `runs` that holds no run yet.
fn free(name: &str) -> PathBuf {
    let numbered = (2..).map(|i| Path::new("runs").join(format!("{name}-{i}")));
    let mut candidates = std::iter::once(Path::new("runs").join(name)).chain(numbered);
    candidates.find(|p| !p.exists()).expect("there are numbers enough")
}
