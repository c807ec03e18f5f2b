//! What `thalweg train` can train: one file each. A recipe uses the library as any program would.

mod a9a;
mod cart;
mod cart_pole;
mod char_gpt;
mod classify;
mod factorise;
mod gan;
mod kmeans;
mod lasso;
mod logistic;
mod lstm;
mod mixture;
mod mlp;
mod mnist;
mod perceptron;
mod resnet;
mod samples;
mod topics;
mod tree_lstm;
mod vae;

use std::fmt;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::builder::PossibleValue;
use thalweg::Tensor;
use thalweg::data::{Channels, Image, encode_png};
use thalweg::train::{Epochs, Span, Steps};

use crate::job::Job;

/// A net or another model, its data, and how the one learns the other.
pub struct Recipe {
    pub name: &'static str,
    pub alias: Option<&'static str>,
    pub about: &'static str,
    pub defaults: Defaults,
    /// Whether it shows what it has learned when training is done.
    pub shows: bool,
    /// Builds a trainer and hands it to [`Job::work`], or a model and hands it to [`Job::solve`]: these train, measure or
    /// use it.
    pub run: fn(&Job) -> Result<()>,
}

/// What is used unless the command says otherwise; a recipe has no use for what is `None`.
pub struct Defaults {
    pub length: Length,
    pub batch: Option<usize>,
    pub lr: Option<f64>,
    pub components: Option<usize>,
    pub penalty: Option<f64>,
}

impl Defaults {
    /// Of a net.
    const fn net(length: Length, batch: usize, lr: f64) -> Self {
        Self { batch: Some(batch), lr: Some(lr), ..Self::program(length) }
    }

    /// Of a program that takes all samples in every step.
    const fn program(length: Length) -> Self {
        Self { length, batch: None, lr: None, components: None, penalty: None }
    }
}

/// How long a recipe trains.
#[derive(Clone, Copy)]
pub enum Length {
    Epochs(u64),
    Steps(u64),
}

impl Length {
    /// How often a checkpoint is written: about ten times in all, and after every step where there are fewer.
    pub fn tenth(self, per_epoch: u64) -> Steps {
        Steps(((Span::from(self).steps(per_epoch) + 5) / 10).max(1))
    }
}

impl fmt::Display for Length {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Length::Epochs(n) => write!(f, "{n} epochs"),
            Length::Steps(n) => write!(f, "{n} steps"),
        }
    }
}

impl From<Length> for Span {
    fn from(length: Length) -> Self {
        match length {
            Length::Epochs(n) => Epochs(n).into(),
            Length::Steps(n) => Steps(n).into(),
        }
    }
}

pub static ALL: [&Recipe; 17] = [
    &mnist::RECIPE,
    &mlp::RECIPE,
    &resnet::RECIPE,
    &lstm::RECIPE,
    &vae::RECIPE,
    &gan::RECIPE,
    &logistic::RECIPE,
    &perceptron::RECIPE,
    &a9a::RECIPE,
    &char_gpt::RECIPE,
    &tree_lstm::RECIPE,
    &cart_pole::RECIPE,
    &kmeans::RECIPE,
    &mixture::RECIPE,
    &lasso::RECIPE,
    &factorise::RECIPE,
    &topics::RECIPE,
];

/// The recipe of this name or alias.
pub fn find(name: &str) -> Option<&'static Recipe> {
    ALL.into_iter().find(|r| r.name == name || r.alias == Some(name))
}

/// The names, for the command line: wrong ones are answered with those there are.
pub fn names() -> Vec<PossibleValue> {
    let value = |r: &&Recipe| PossibleValue::new(r.name).aliases(r.alias).help(r.about);
    ALL.iter().map(value).collect()
}

/// Writes pictures of 28 × 28 as one, eight in a row, to `samples.png` in the run.
fn save_digits(job: &Job, pictures: &Tensor) -> Result<()> {
    const SIDE: usize = 28;
    const ROW: usize = 8;
    let (n, grey) = (pictures.size(0), pictures.to_vec::<f32>());
    let (width, height) = (ROW * SIDE, n.div_ceil(ROW) * SIDE);
    let mut pixels = vec![0; width * height];
    for (i, row) in grey.chunks(SIDE).enumerate() {
        let (picture, y) = (i / SIDE, i % SIDE);
        let at = (picture / ROW * SIDE + y) * width + picture % ROW * SIDE;
        pixels[at..at + SIDE].iter_mut().zip(row).for_each(|(p, g)| *p = (g * 255.0).round() as u8);
    }
    let path = job.out.join("samples.png");
    std::fs::write(&path, encode_png(&Image { width, height, channels: Channels::Grey, pixels }))
        .with_context(|| format!("write {}", path.display()))?;
    match job.json {
        true => writeln!(std::io::stdout(), "{}", serde_json::json!({"samples": path}))?,
        false => writeln!(std::io::stdout(), "{n} samples are in {}", path.display())?,
    }
    Ok(())
}

/// A file of a folder, by the first of these names that exists, gzipped or not.
fn file_in(folder: &Path, names: &[&str]) -> Result<PathBuf> {
    let candidates = names.iter().flat_map(|n| [folder.join(n), folder.join(format!("{n}.gz"))]);
    match candidates.into_iter().find(|p| p.exists()) {
        Some(path) => Ok(path),
        None => bail!("{} has no file {} (it may be gzipped)", folder.display(), names.join(" or ")),
    }
}
