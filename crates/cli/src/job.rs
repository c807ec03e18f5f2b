//! One training, measurement or use of a recipe: everything about it that is not the recipe's.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail};
use serde::{Deserialize, Serialize};
use serde_json::json;
use thalweg::data::{Batches, Dataset};
use thalweg::train::{Ended, Run, Span, Steps, TrainError, Trainer, load_latest, weights_hash};
use thalweg::{Module, Rng, Rule, Tensor, Tree, load_weights, set_weights};

use crate::progress::{self, Bar, numbers};
use crate::recipes::{self, Length, Recipe};
use crate::train::{command, report};

/// Everything that decides what comes out: the `config.json` of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    pub recipe: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    pub batch: usize,
    pub lr: f64,
    pub seed: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<PathBuf>,
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

    fn length(&self) -> Length {
        match (self.steps, self.epochs) {
            (Some(n), _) => Length::Steps(n),
            (None, n) => Length::Epochs(n.unwrap_or(1)),
        }
    }
}

/// What is to be done with the net of a recipe.
pub enum Task {
    /// Train it, or go on with training it.
    Train { resume: bool },
    /// Measure it.
    Eval,
    /// Use it on these inputs, or on examples when there are none.
    Predict { inputs: Vec<String> },
}

/// A task, as a recipe sees it.
pub struct Job {
    pub recipe: &'static Recipe,
    pub settings: Settings,
    pub task: Task,
    /// The run.
    pub out: PathBuf,
    /// Only JSON is printed.
    pub json: bool,
    /// Set by Ctrl-C.
    pub stop: Arc<AtomicBool>,
}

impl Job {
    /// Random numbers for the weights.
    pub fn rng(&self) -> Rng {
        Rng::seed(self.settings.seed)
    }

    /// How many of `all` samples are used.
    pub fn limit(&self, all: usize) -> usize {
        self.settings.samples.map_or(all, |n| n.min(all))
    }

    /// The steps of the whole training.
    pub fn steps(&self, train: &impl Dataset) -> u64 {
        match self.settings.length() {
            Length::Steps(n) => n,
            Length::Epochs(n) => n * train.batches(self.settings.batch).steps() as u64,
        }
    }

    /// What `thalweg predict` was given.
    pub fn inputs(&self) -> &[String] {
        match &self.task {
            Task::Predict { inputs } => inputs,
            _ => &[],
        }
    }

    /// Does the task with a trainer; `show` uses the net and prints what it says.
    pub fn work<N, R, B, L, D>(
        &self,
        trainer: Trainer<N, R, B, L>,
        batches: Batches<D>,
        show: impl Fn(&N) -> Result<()>,
    ) -> Result<()>
    where
        N: Module,
        R: Rule,
        B: Tree + 'static,
        L: Fn(&N, B) -> Tensor,
        D: Dataset<Batch = B>,
    {
        match &self.task {
            Task::Train { resume } => self.train(trainer, batches, *resume, show),
            Task::Eval => self.eval(trainer),
            Task::Predict { .. } => {
                self.load(trainer.net())?;
                trainer.net().eval();
                show(trainer.net())
            }
        }
    }

    fn train<N, R, B, L, D>(
        &self,
        trainer: Trainer<N, R, B, L>,
        batches: Batches<D>,
        resume: bool,
        show: impl Fn(&N) -> Result<()>,
    ) -> Result<()>
    where
        N: Module,
        R: Rule,
        B: Tree + 'static,
        L: Fn(&N, B) -> Tensor,
        D: Dataset<Batch = B>,
    {
        let length = self.settings.length();
        if !self.json {
            // A reader that goes away is no reason not to train.
            let mut out = std::io::stdout();
            let _ = writeln!(out, "{}: {}", self.recipe.name, self.recipe.about);
            let (n, params) = (batches.dataset().len(), trainer.net().n_params());
            let long = match length {
                Length::Epochs(n) => format!("{n} epochs"),
                Length::Steps(n) => format!("{n} steps"),
            };
            let (batch, run) = (batches.size(), self.out.display());
            let _ = writeln!(out, "{params} parameters, {n} samples, {long} in batches of {batch}");
            let _ = writeln!(out, "the run is in {run}");
        }
        let every: Span = match length {
            Length::Epochs(_) => Length::Epochs(1).into(),
            Length::Steps(n) => Steps((n / 10).max(1)).into(),
        };
        let mut trainer = trainer
            .checkpoint_every(every, &self.out)
            .resume(resume)
            .config(&self.settings)
            .callback(Bar::new(length, self.json, self.stop.clone()));
        let fitted = trainer.fit(batches.seed(self.settings.seed), length).map_err(|e| self.excused(e));
        if !self.json {
            progress::clear();
        }
        let fitted = fitted?;
        if self.recipe.shows && fitted.ended != Ended::Stopped && !self.json {
            trainer.net().eval();
            show(trainer.net())?;
        }
        report(&fitted, &self.out, self.json)?;
        if fitted.ended == Ended::Stopped && self.stop.load(Ordering::Relaxed) {
            std::process::exit(130);
        }
        Ok(())
    }

    /// An error of the disk, with the way on: what was saved before is whole.
    fn excused(&self, e: TrainError) -> anyhow::Error {
        match e {
            TrainError::Io { .. } | TrainError::Format(_) if Run::exists(&self.out) => {
                let (command, run) = (command(), self.out.display());
                anyhow!("{e}\n  when there is room again, go on from what was saved:  {command} resume {run}")
            }
            e => e.into(),
        }
    }

    fn eval<N, R, B, L>(&self, mut trainer: Trainer<N, R, B, L>) -> Result<()>
    where
        N: Module,
        R: Rule,
        B: Tree + 'static,
        L: Fn(&N, B) -> Tensor,
    {
        self.load(trainer.net())?;
        let found = trainer.evaluate()?;
        if self.json {
            let mut line = json!({"run": self.out, "accuracy": found.get("accuracy")});
            for (name, value) in &found {
                line[name.replace('/', "_")] = json!(value);
            }
            writeln!(std::io::stdout(), "{line}")?;
        } else {
            writeln!(std::io::stdout(), "{}", numbers(&found))?;
        }
        Ok(())
    }

    /// The weights of the run.
    fn load(&self, net: &impl Module) -> Result<()> {
        let model = self.out.join("model.safetensors");
        if model.exists() {
            load_weights(net, &model)?;
            return self.as_written(net, &model);
        }
        let loaded = load_latest(self.out.join("checkpoints"))?
            .with_context(|| format!("{} has no model and no checkpoint yet", self.out.display()))?;
        if !loaded.passed_over.is_empty() {
            loaded.passed_over.iter().for_each(|reason| eprintln!("thalweg: {reason}"));
            eprintln!("thalweg: using the checkpoint after step {}", loaded.step);
        }
        let weights = loaded.parts.get("model").context("the checkpoint has no model")?;
        Ok(set_weights(net, weights)?)
    }

    /// An error unless the weights are those that the summary of the run tells of.
    fn as_written(&self, net: &impl Module, model: &Path) -> Result<()> {
        let summary = Run::summary_of(&self.out)?;
        let written = summary.as_ref().and_then(|s| s.get("weights")).and_then(|w| w.as_str());
        if written.is_some_and(|hash| hash != weights_hash(net)) {
            bail!(
                "{} is damaged: its weights are not those that training ended with. Remove it to use the last checkpoint",
                model.display()
            );
        }
        Ok(())
    }
}
