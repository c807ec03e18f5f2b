//! `thalweg bench`: times workloads and prints them as a table, or in the CSV format of the rivals'
//! scripts in `benches/peers`.

mod clock;
mod compiler;
mod networks;
mod workloads;

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Context, Result, bail};

use clock::Timing;

#[derive(clap::Args)]
pub struct Args {
    /// Workloads or groups of workloads by name.
    names: Vec<String>,
    /// Threads to use.
    #[arg(long, default_value_t = thalweg::threads())]
    threads: usize,
    /// Print `framework,threads,workload,wall_median,wall_min,cpu_median,cpu_min,n` in ms.
    #[arg(long)]
    csv: bool,
    /// Print where the time of a training step goes, step by step of its plan, instead of timing it.
    #[arg(long, conflicts_with = "csv")]
    profile: bool,
    /// Write data, weights and first losses or results of the networks to files in this folder instead of timing them;
    /// `benches/peers/agree.py` compares them with PyTorch's.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["csv", "profile"])]
    export: Option<PathBuf>,
    /// For `compiler`: the trees of this file, such as those of the Stanford Sentiment Treebank, instead of drawn ones.
    #[arg(long, value_name = "FILE")]
    trees: Option<PathBuf>,
}

pub fn run(args: &Args) -> Result<()> {
    let all: Vec<_> = workloads::all().into_iter().chain(networks::all()).collect();
    if args.names.is_empty() {
        println!("workloads (group: names):");
        for group in workloads::GROUPS {
            let names: Vec<&str> = all.iter().filter(|w| w.group == *group).map(|w| w.name).collect();
            println!("  {group}: {}", names.join(" "));
        }
        println!("  compiler: what compiling costs and saves, as a table");
        return Ok(());
    }
    for name in &args.names {
        if name != "compiler" && !all.iter().any(|w| w.name == name || w.group == name) {
            bail!("no workload or group `{name}`; `thalweg bench` lists them");
        }
    }
    thalweg::set_threads(args.threads);
    let mut out = std::io::stdout().lock();
    let chosen = |group: &str, name: &str| args.names.iter().any(|n| n == name || n == group);
    if let Some(folder) = &args.export {
        std::fs::create_dir_all(folder)
            .with_context(|| format!("cannot make the folder {}", folder.display()))?;
        return networks::export(folder, |name| chosen("networks", name));
    }
    if args.profile {
        for (name, build) in networks::TRAININGS.iter().filter(|(name, _)| chosen("networks", name)) {
            writeln!(out, "{name}\n{}", build().step.profile())?;
        }
        return Ok(());
    }
    if chosen("compiler", "compiler") {
        compiler::report(&mut out, args.trees.as_deref())?;
    }
    let timed: Vec<_> = all.iter().filter(|w| chosen(w.group, w.name)).collect();
    if !args.csv && !timed.is_empty() {
        writeln!(out, "{:<22} {:>12} {:>12} {:>6}", "workload", "median ms", "min ms", "n")?;
    }
    for w in timed {
        let Timing { wall_median, wall_min, cpu_median, cpu_min, n } = (w.run)();
        if args.csv {
            let (threads, name) = (args.threads, w.name);
            writeln!(
                out,
                "thalweg,{threads},{name},{wall_median:.6},{wall_min:.6},{cpu_median:.6},{cpu_min:.6},{n}"
            )?;
        } else {
            writeln!(out, "{:<22} {wall_median:>12.6} {wall_min:>12.6} {n:>6}", w.name)?;
        }
        out.flush()?;
    }
    Ok(())
}
