//! `thalweg eval` and `thalweg predict`: a trained run at work.

use std::path::Path;

use anyhow::Result;

use crate::job::{Job, Settings, Task};

pub fn eval(run: &Path, json: bool) -> Result<()> {
    work(run, Task::Eval, json)
}

pub fn predict(run: &Path, inputs: Vec<String>, json: bool) -> Result<()> {
    work(run, Task::Predict { inputs }, json)
}

fn work(run: &Path, task: Task, json: bool) -> Result<()> {
    let (settings, recipe) = Settings::of(run)?;
    (recipe.run)(&Job { recipe, settings, task, out: run.to_owned(), json, stop: Default::default() })
}
