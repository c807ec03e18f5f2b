//! `thalweg plot`: curves of runs as a picture.

use std::collections::BTreeSet;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use thalweg::data::encode_png;
use thalweg::train::plot::{Plot, Series};
use thalweg::train::{RunSummary, TrainError};

#[derive(clap::Args)]
pub struct Args {
    /// Folders of runs, or runs.
    #[arg(default_value = "runs")]
    paths: Vec<PathBuf>,
    /// What to draw.
    #[arg(short, long, default_value = "loss")]
    metric: String,
    /// The file, `.svg` or `.png`; named after the metric unless said otherwise.
    #[arg(short, long)]
    out: Option<PathBuf>,
    /// Powers of ten at equal distances.
    #[arg(long)]
    log: bool,
    /// Against seconds of training instead of steps.
    #[arg(long)]
    time: bool,
}

pub fn run(args: &Args) -> Result<()> {
    let runs = crate::runs::all(&args.paths)?;
    let series: Vec<Series> = runs
        .iter()
        .map(|r| Series { name: r.name.clone(), points: points(r, args) })
        .filter(|s| !s.points.is_empty())
        .collect();
    if series.is_empty() {
        let have: BTreeSet<String> = runs.iter().flat_map(|r| r.last.keys().cloned()).collect();
        return Err(
            TrainError::NoMetric { name: args.metric.clone(), have: have.into_iter().collect() }.into()
        );
    }
    let x_name = if args.time { "seconds" } else { "step" };
    let plot = Plot {
        title: args.metric.clone(),
        x_name: x_name.into(),
        series,
        log_y: args.log,
        ..Plot::default()
    };
    let out = args.out.clone().unwrap_or_else(|| PathBuf::from(args.metric.replace('/', "-") + ".svg"));
    let bytes = match out.extension().and_then(|e| e.to_str()) {
        Some("svg") => plot.svg().into_bytes(),
        Some("png") => encode_png(&plot.image(960, 560)),
        _ => bail!("{}: unknown ending (use .svg or .png)", out.display()),
    };
    std::fs::write(&out, bytes).with_context(|| format!("write {}", out.display()))?;
    println!("{}", out.display());
    Ok(())
}

fn points(run: &RunSummary, args: &Args) -> Vec<(f64, f64)> {
    let x = |l: &thalweg::train::Line| if args.time { l.seconds } else { l.step as f64 };
    run.lines.iter().filter_map(|l| Some((x(l), *l.values.get(&args.metric)?))).collect()
}
