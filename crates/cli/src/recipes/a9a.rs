//! Logistic regression with an L2 penalty on a9a: does someone earn more than 50,000 dollars a year?
//!
//! Reaches 85.0 % on the test set and the objective 0.3246, whose minimum is 0.32451.

use std::io::Write;

use anyhow::Result;
use thalweg::cluster::TableId;
use thalweg::cluster::programs::Logistic;
use thalweg::data::{Dataset, Sparse, libsvm};

use super::samples::file;
use super::{Defaults, Length, Recipe, file_in};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "a9a",
    alias: None,
    about: "sparse logistic regression with L2 on incomes (a9a); --data FOLDER with a9a and a9a.t",
    defaults: Defaults { penalty: Some(1e-4), ..Defaults::program(Length::Steps(3000)) },
    shows: true,
    run,
};

fn run(job: &Job) -> Result<()> {
    let (train, test) = read(job)?;
    job.solve(&Logistic::new(train, test, job.penalty())?, |values| {
        // The features that say most, either way.
        let mut weights: Vec<(usize, f32)> =
            (1..).zip(values[&TableId(0)].iter().step_by(2).copied()).collect();
        weights.sort_by(|a, b| b.1.abs().total_cmp(&a.1.abs()));
        for (feature, weight) in weights.into_iter().take(10) {
            writeln!(std::io::stdout(), "feature {feature:>3}: {weight:+.3}")?;
        }
        Ok(())
    })
}

fn read(job: &Job) -> Result<(Sparse, Sparse)> {
    let folder =
        file(job, "the folder of a9a and a9a.t, from the LIBSVM data page (binary classification),")?;
    let train = libsvm::read(file_in(folder, &["a9a"])?, &libsvm::Options::default())?.data;
    let options = libsvm::Options { n_features: Some(train.n_features()), ..Default::default() };
    let test = libsvm::read(file_in(folder, &["a9a.t"])?, &options)?.data;
    Ok((train.first(job.limit(train.len())), test.first(job.limit(test.len()))))
}
