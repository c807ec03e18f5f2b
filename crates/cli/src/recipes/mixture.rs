//! A mixture of Gaussians with diagonal covariance: three kinds of irises, or of other points.

use std::io::Write;

use anyhow::Result;
use thalweg::cluster::TableId;
use thalweg::cluster::programs::Mixture;

use super::samples::{points, row};
use super::{Defaults, Length, Recipe};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "mixture",
    alias: None,
    about: "Gaussian mixture by EM on flowers (iris); --data FILE.csv for other points",
    defaults: Defaults { components: Some(3), ..Defaults::program(Length::Steps(100)) },
    shows: true,
    run,
};

fn run(job: &Job) -> Result<()> {
    let points = points(job)?;
    job.solve(&Mixture::new(&points, job.components())?, |values| {
        let (mut out, d) = (std::io::stdout(), points.size(1));
        for part in values[&TableId(0)].chunks_exact(2 * d + 1) {
            let deviations: Vec<f32> = part[1 + d..].iter().map(|v| v.sqrt()).collect();
            writeln!(out, "{:>6.1} points: means     {}", part[0], row(&part[1..=d]))?;
            writeln!(out, "               deviations{}", row(&deviations))?;
        }
        Ok(())
    })
}
