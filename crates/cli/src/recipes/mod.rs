//! What `thalweg train` can train: one file each. A recipe uses the library as any program would.

mod a9a;
mod cart_pole;
mod char_gpt;
mod classify;
mod logistic;
mod mlp;
mod mnist;
mod tree_lstm;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::builder::PossibleValue;
use thalweg::train::{Epochs, Span, Steps};

use crate::job::Job;

/// A net, its data, and how the one learns the other.
pub struct Recipe {
    pub name: &'static str,
    pub alias: Option<&'static str>,
    pub about: &'static str,
    pub defaults: Defaults,
    /// Whether the net shows what it can do when training is done.
    pub shows: bool,
    /// Builds a trainer and hands it to [`Job::work`], which trains, measures or uses the net.
    pub run: fn(&Job) -> Result<()>,
}

/// What is used unless the command says otherwise.
pub struct Defaults {
    pub length: Length,
    pub batch: usize,
    pub lr: f64,
}

/// How long a recipe trains.
#[derive(Clone, Copy)]
pub enum Length {
    Epochs(u64),
    Steps(u64),
}

impl From<Length> for Span {
    fn from(length: Length) -> Self {
        match length {
            Length::Epochs(n) => Epochs(n).into(),
            Length::Steps(n) => Steps(n).into(),
        }
    }
}

pub static ALL: [&Recipe; 7] = [
    &mnist::RECIPE,
    &mlp::RECIPE,
    &logistic::RECIPE,
    &a9a::RECIPE,
    &char_gpt::RECIPE,
    &tree_lstm::RECIPE,
    &cart_pole::RECIPE,
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

/// A file of a folder, by the first of these names that exists, gzipped or not.
fn file_in(folder: &Path, names: &[&str]) -> Result<PathBuf> {
    let candidates = names.iter().flat_map(|n| [folder.join(n), folder.join(format!("{n}.gz"))]);
    match candidates.into_iter().find(|p| p.exists()) {
        Some(path) => Ok(path),
        None => bail!("{} has no file {} (it may be gzipped)", folder.display(), names.join(" or ")),
    }
}
