//! Lasso: which measures of a patient tell how far diabetes goes.

use std::io::Write;

use anyhow::Result;
use thalweg::cluster::TableId;
use thalweg::cluster::programs::Lasso;

use super::samples::regression;
use super::{Defaults, Length, Recipe};
use crate::job::Job;

pub static RECIPE: Recipe = Recipe {
    name: "lasso",
    alias: None,
    about: "lasso by coordinate descent on patients (diabetes); --data FILE.csv whose last column is the target",
    defaults: Defaults { penalty: Some(1.0), ..Defaults::program(Length::Steps(2000)) },
    shows: true,
    run,
};

fn run(job: &Job) -> Result<()> {
    let data = regression(job)?;
    job.solve(&Lasso::new(&data.x, &data.y, job.penalty())?, |values| {
        for (i, weight) in values[&TableId(0)].iter().enumerate().filter(|(_, w)| w.abs() > 1e-4) {
            writeln!(std::io::stdout(), "feature {:>3}: {weight:+.3}", i + 1)?;
        }
        Ok(())
    })
}
