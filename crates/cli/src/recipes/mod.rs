//! What `thalweg train` can train: one file each. A recipe uses the library as any program would.

mod logistic;
mod mlp;
mod mnist;

use anyhow::Result;
use clap::builder::PossibleValue;
use thalweg::Rng;
use thalweg::Sequential;
use thalweg::data::Examples;
use thalweg::train::Fitted;

use crate::train::Job;

/// A net, its data, and how the one learns the other.
pub struct Recipe {
    pub name: &'static str,
    pub alias: Option<&'static str>,
    pub about: &'static str,
    pub defaults: Defaults,
    pub data: fn() -> Result<Split>,
    pub net: fn(&mut Rng) -> Sequential,
    /// Builds the optimiser and calls [`Job::fit`].
    pub fit: fn(&Job, Sequential, Split) -> Result<Fitted>,
}

/// What is used unless the command says otherwise.
pub struct Defaults {
    pub epochs: u64,
    pub batch: usize,
    pub lr: f64,
}

/// Samples to learn from, and others to be measured on.
pub struct Split {
    pub train: Examples,
    pub test: Examples,
}

pub static ALL: [&Recipe; 3] = [&mnist::RECIPE, &mlp::RECIPE, &logistic::RECIPE];

/// The recipe of this name or alias.
pub fn find(name: &str) -> Option<&'static Recipe> {
    ALL.into_iter().find(|r| r.name == name || r.alias == Some(name))
}

/// The names, for the command line: wrong ones are answered with those there are.
pub fn names() -> Vec<PossibleValue> {
    let value = |r: &&Recipe| PossibleValue::new(r.name).aliases(r.alias).help(r.about);
    ALL.iter().map(value).collect()
}

/// The digits of MNIST.
fn digits() -> Result<Split> {
    let data = thalweg::data::mnist()?;
    Ok(Split { train: data.train, test: data.test })
}
