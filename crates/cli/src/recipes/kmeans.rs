//! k-means: the middles of three groups of irises, or of other points.

use std::io::Write;

use anyhow::Result;
use thalweg::cluster::TableId;
use thalweg::cluster::programs::KMeans;

use super::samples::{points, row};
use super::{Defaults, Length, Recipe};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "kmeans",
    alias: None,
    about: "k-means on flowers (iris); --data FILE.csv for other points",
    defaults: Defaults { components: Some(3), ..Defaults::program(Length::Steps(30)) },
    shows: true,
    run,
};

fn run(job: &Job) -> Result<()> {
    let points = points(job)?;
    job.solve(&KMeans::new(&points, job.components())?, |values| {
        let mut out = std::io::stdout();
        for centre in values[&TableId(0)].chunks_exact(points.size(1) + 1) {
            let (at, n) = centre.split_at(points.size(1));
            writeln!(out, "{:>6} points around{}", n[0], row(at))?;
        }
        Ok(())
    })
}
