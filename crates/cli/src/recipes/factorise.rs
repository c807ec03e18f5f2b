//! Matrix factorisation of ratings, such as those of films in MovieTweetings.

use std::io::Write;

use anyhow::Result;
use thalweg::cluster::TableId;
use thalweg::cluster::programs::{Factors, FactorsOptions};
use thalweg::data::{OnError, ratings};

use super::samples::file;
use super::{Defaults, Length, Recipe, file_in};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "factorise",
    alias: None,
    about: "matrix factorisation of ratings (MovieTweetings); --data ratings.dat, or its folder",
    defaults: Defaults {
        batch: Some(4000),
        lr: Some(0.1),
        components: Some(7),
        penalty: Some(0.5),
        ..Defaults::program(Length::Epochs(20))
    },
    shows: true,
    run,
};

fn run(job: &Job) -> Result<()> {
    let path = file(job, "ratings as lines `user::item::rating::time`")?;
    let path = if path.is_dir() { file_in(path, &["ratings.dat"])? } else { path.to_owned() };
    let all = ratings::read(path, OnError::Stop)?.data;
    let how = FactorsOptions {
        factors: job.components(),
        batch: job.batch(),
        lr: job.lr(),
        penalty: job.penalty(),
        seed: job.settings.seed,
    };
    job.solve(&Factors::new(&all, how)?, |values| {
        // The last number of an item is by how much it is rated above the mean, whoever rates it.
        let biases = values[&TableId(1)].chunks_exact(how.factors + 1).map(|row| row[how.factors]);
        let mut liked: Vec<(f32, &String)> = biases.zip(&all.item_names).collect();
        liked.sort_by(|a, b| b.0.total_cmp(&a.0));
        for (bias, name) in liked.into_iter().take(10) {
            writeln!(std::io::stdout(), "item {name}: {bias:+.2}")?;
        }
        Ok(())
    })
}
