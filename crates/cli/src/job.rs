//! One training, measurement or use of a recipe: everything about it that is not the recipe's.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::json;
use thalweg::cluster::net::config::Config;
use thalweg::cluster::programs::{LearnedValues, Model, Solver};
use thalweg::cluster::{Cluster, ClusterError, OnCluster, Pulled, Sync, say};
use thalweg::data::{Batches, Dataset};
use thalweg::train::{Ended, Fitted, Run, Span, TrainError, Trainer, load_latest, weights_hash};
use thalweg::{Module, Rng, Rule, Tensor, Tree, load_weights, set_weights};

use crate::progress::{self, Bar, numbers};
use crate::recipes::{self, Length, Recipe};
use crate::train::{STOPPED, command, report};

/// Everything that decides what comes out: the `config.json` of a run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Settings {
    pub recipe: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lr: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub components: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub penalty: Option<f64>,
    pub seed: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub samples: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<usize>,
    /// The consistency, where it is not BSP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sync: Option<String>,
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

/// What is to be done with the net or the model of a recipe.
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

    /// Samples of a step.
    pub fn batch(&self) -> usize {
        self.settings.batch.or(self.recipe.defaults.batch).expect("the recipe has batches")
    }

    /// The learning rate.
    pub fn lr(&self) -> f64 {
        self.settings.lr.or(self.recipe.defaults.lr).expect("the recipe has a learning rate")
    }

    /// Groups, factors or topics to look for.
    pub fn components(&self) -> usize {
        self.settings.components.or(self.recipe.defaults.components).expect("the recipe has components")
    }

    /// What large weights cost.
    pub fn penalty(&self) -> f64 {
        self.settings.penalty.or(self.recipe.defaults.penalty).expect("the recipe has a penalty")
    }

    /// How many of `all` samples are used.
    pub fn limit(&self, all: usize) -> usize {
        self.settings.samples.map_or(all, |n| n.min(all))
    }

    /// The steps of the whole training.
    pub fn steps(&self, train: &impl Dataset) -> u64 {
        Span::from(self.settings.length()).steps(train.batches(self.batch()).steps() as u64)
    }

    /// What the folder of the run will say of it. The slots decide its bits, also when one process goes on with it.
    fn recorded(&self, cluster: &Cluster) -> Settings {
        let slots = Some(cluster.n_slots()).filter(|n| *n > 1);
        let sync = Some(cluster.sync()).filter(|sync| *sync != Sync::Bsp).map(|sync| sync.to_string());
        Settings { slots: self.settings.slots.or(slots), sync, ..self.settings.clone() }
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
        mut trainer: Trainer<N, R, B, L>,
        batches: Batches<D>,
        show: impl Fn(&N) -> Result<()>,
    ) -> Result<()>
    where
        N: Module,
        R: Rule + Send + 'static,
        B: Tree + 'static,
        L: Fn(&N, B) -> Tensor,
        D: Dataset<Batch = B>,
    {
        let Task::Train { resume } = self.task else {
            self.load(trainer.net())?;
            trainer.net().eval();
            return match self.task {
                Task::Eval => self.measured(&trainer.evaluate()?),
                _ => show(trainer.net()),
            };
        };
        let (n, size) = (batches.dataset().len(), batches.size());
        let cluster = self
            .begin(&format!("{} parameters, {n} samples in batches of {size}", trainer.net().n_params()))?;
        let length = self.settings.length();
        let mut trainer = trainer
            .checkpoint_every(length.tenth(batches.steps() as u64), &self.out)
            .resume(resume)
            .config(&self.recorded(&cluster))
            .callback(self.bar());
        let batches = batches.seed(self.settings.seed);
        let show = |net: &N| {
            net.eval();
            show(net)
        };
        // Slots change what is computed; without them the trainer's own loop is quicker.
        if cluster.is_alone() && cluster.n_slots() == 1 {
            let fitted = trainer.fit(batches, length).map_err(ClusterError::from);
            self.end(fitted, None, || show(trainer.net()))
        } else {
            match trainer.on(cluster).fit(batches, length) {
                Ok(trained) if !trained.keeper => Ok(()),
                Ok(trained) => self.end(Ok(trained.fitted), Some(trained.traffic), || show(&trained.net)),
                Err(e) => self.end(Err(e), None, || Ok(())),
            }
        }
    }

    /// Does the task with a model; `show` prints what it has learned.
    pub fn solve(&self, model: &impl Model, show: impl Fn(&Pulled) -> Result<()>) -> Result<()> {
        let learned = LearnedValues::of(model);
        let Task::Train { resume } = self.task else {
            self.load(&learned)?;
            return match self.task {
                Task::Eval => self.measured(&model.measure(&learned.by_table())),
                _ => show(&learned.by_table()),
            };
        };
        let cluster = self.begin(&format!("{} numbers to learn", learned.n_params()))?;
        let length = self.settings.length();
        let solver = Solver::new(model)
            .checkpoint_every(length.tenth(model.steps_per_epoch()), &self.out)
            .resume(resume)
            .config(serde_json::to_value(self.recorded(&cluster))?)
            .callback(self.bar());
        match solver.fit(cluster, length) {
            Ok(solved) if !solved.keeper => Ok(()),
            Ok(solved) => self.end(Ok(solved.fitted), Some(solved.traffic), || show(&solved.net.by_table())),
            Err(e) => self.end(Err(e), None, || Ok(())),
        }
    }

    fn bar(&self) -> Bar {
        Bar::new(self.out.clone(), self.settings.length(), self.json, self.stop.clone())
    }

    /// Says what begins, in one process of the cluster that it begins on.
    fn begin(&self, what: &str) -> Result<Cluster> {
        let mut cluster = Cluster::from_env()?;
        // Where the data lie may differ from host to host.
        let Settings { recipe, batch, lr, components, penalty, seed, samples, .. } = self.settings.clone();
        cluster = cluster.with_setting("recipe", recipe).with_setting("seed", seed);
        let numbers = [
            ("batch", batch.map(|n| n as f64)),
            ("components", components.map(|n| n as f64)),
            ("learning rate", lr),
            ("penalty", penalty),
            ("samples", samples.map(|n| n as f64)),
        ];
        for (name, value) in numbers {
            cluster = value.into_iter().fold(cluster, |cluster, value| cluster.with_setting(name, value));
        }
        if let Some(slots) = self.settings.slots {
            cluster = cluster.with_slots(slots);
            let there = cluster.n_slots();
            ensure!(
                there == slots || matches!(self.task, Task::Train { resume: true }),
                "the cluster has {there} slots, not {slots}: say `launch --slots {slots}`"
            );
            if there != slots && cluster.is_first() {
                say(
                    "thalweg",
                    format_args!(
                        "the run was begun with {slots} slots and goes on with {there}, so its last bits will be others; \
                         `launch --slots {slots}` keeps them"
                    ),
                );
            }
        }
        let (was, is) = (self.settings.sync.as_deref().unwrap_or("bsp"), cluster.sync().to_string());
        if was != is && matches!(self.task, Task::Train { resume: true }) && cluster.is_first() {
            say(
                "thalweg",
                format_args!(
                    "the run was begun with --sync {was} and goes on with {is}; `launch --sync {was}` keeps it"
                ),
            );
        }
        if !self.json && cluster.is_first() {
            // A reader that goes away is no reason not to train.
            let mut out = std::io::stdout();
            let _ = writeln!(out, "{}: {}", self.recipe.name, self.recipe.about);
            let _ = writeln!(out, "{what}, {}", self.settings.length());
        }
        Ok(cluster)
    }

    /// Says how it ended, and with what.
    fn end(
        &self,
        fitted: Result<Fitted, ClusterError>,
        traffic: Option<[u64; 2]>,
        show: impl Fn() -> Result<()>,
    ) -> Result<()> {
        if !self.json {
            progress::clear();
        }
        let fitted = match fitted {
            Err(ClusterError::Interrupted { clock }) if self.stop.load(Ordering::Relaxed) => {
                Fitted::stopped(clock)
            }
            other => other.map_err(|e| self.excused(e))?,
        };
        if self.recipe.shows && fitted.ended != Ended::Stopped && !self.json {
            show()?;
        }
        report(&fitted, traffic, &self.out, self.json)?;
        // Launchers that number their processes take any status but 0 for a failure of the whole job.
        if fitted.ended == Ended::Stopped && !Config::from_env()?.until_done {
            std::process::exit(STOPPED);
        }
        Ok(())
    }

    /// An error of the disk, with the way on: what was saved before is whole.
    fn excused(&self, e: ClusterError) -> anyhow::Error {
        let of_disk = |e: &TrainError| matches!(e, TrainError::Io { .. } | TrainError::Format(_));
        match e {
            ClusterError::Train(e) if of_disk(&e) && Run::exists(&self.out) => {
                let (command, run) = (command(), self.out.display());
                anyhow!("{e}\n  when there is room again, go on from what was saved:  {command} resume {run}")
            }
            e => e.into(),
        }
    }

    /// Prints what was measured.
    fn measured(&self, found: &BTreeMap<String, f64>) -> Result<()> {
        if self.json {
            let mut line = json!({"run": self.out, "accuracy": found.get("accuracy")});
            for (name, value) in found {
                line[name.replace('/', "_")] = json!(value);
            }
            writeln!(std::io::stdout(), "{line}")?;
        } else {
            writeln!(std::io::stdout(), "{}", numbers(found))?;
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
