//! Samples of the models that are no nets: tables of numbers, from inside or from a file.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use thalweg::data::{Dataset, Examples, Table, csv, diabetes, iris};
use thalweg::{DType, Tensor};

use crate::job::Job;

/// Points: the rows of a CSV file, or the measures of the irises.
pub fn points(job: &Job) -> Result<Tensor> {
    let x = match &job.settings.data {
        Some(file) => table(file)?.matrix_f64()?.to_dtype(DType::F32),
        None => iris()?.data.x,
    };
    Ok(x.i(..job.limit(x.size(0))))
}

/// Inputs and targets: the columns of a CSV file, of which the last is the target, or the diabetes patients.
pub fn regression(job: &Job) -> Result<Examples> {
    let all = match &job.settings.data {
        Some(file) => {
            let matrix = table(file)?.matrix_f64()?.to_dtype(DType::F32);
            let last = matrix.size(1) - 1;
            ensure!(
                last > 0,
                "{}: there should be features and then a target, not one column",
                file.display()
            );
            Examples::new(matrix.i((.., ..last)), matrix.i((.., last)))?
        }
        None => diabetes()?,
    };
    Ok(all.rows(0..job.limit(all.len())))
}

fn table(file: &Path) -> Result<Table> {
    let table = csv::read(file, &csv::Options::default())?.data;
    ensure!(table.n_rows() > 0, "{} has no rows below its header", file.display());
    Ok(table)
}

/// The file that a recipe cannot do without.
pub fn file<'a>(job: &'a Job, what: &str) -> Result<&'a Path> {
    let name = job.recipe.name;
    job.settings
        .data
        .as_deref()
        .with_context(|| format!("{name} has no data inside: give {what} with --data PATH"))
}

/// Numbers of a row, for people.
pub fn row(values: &[f32]) -> String {
    values.iter().map(|v| format!("{v:>9.3}")).collect()
}
