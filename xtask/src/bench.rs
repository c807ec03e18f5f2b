//! `cargo xtask bench`: ours and PyTorch on the same work, in turns, so that both see the same machine.

use std::collections::BTreeMap;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{root, value};

/// (workload, threads) → framework → median wall times in ms, one per round.
type Times = BTreeMap<(String, usize), BTreeMap<String, Vec<f64>>>;

pub fn run(args: &[&str]) -> Result<()> {
    let rounds: usize = value(args, "--rounds").map_or(Ok(3), str::parse)?;
    let flags = args.iter().position(|a| *a == "--rounds").map_or(0..0, |i| i..i + 2);
    let mut groups: Vec<&str> =
        args.iter().enumerate().filter(|(i, _)| !flags.contains(i)).map(|(_, a)| *a).collect();
    if groups.is_empty() {
        groups = vec!["eager", "product", "stream"];
    }
    let built = Command::new(env!("CARGO"))
        .args(["build", "--release", "-p", "thalweg-cli"])
        .current_dir(root())
        .status()?;
    ensure!(built.success(), "the release build failed");
    let python = std::env::var("THALWEG_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let torch = Command::new(&python).args(["-c", "import torch"]).output().is_ok_and(|o| o.status.success());
    if !torch {
        println!("skipped PyTorch: `{python}` cannot import torch (set THALWEG_PYTHON to one that can)");
    }
    let mut times = Times::new();
    for round in 0..rounds {
        for threads in [1, 2] {
            eprintln!("round {} of {rounds}, {threads} threads", round + 1);
            let n = threads.to_string();
            let mut ours = Command::new(target_dir().join("release/thalweg"));
            collect(ours.args(["bench", "--csv", "--threads", &n]).args(&groups), &mut times)?;
            if torch {
                let mut theirs = Command::new(&python);
                theirs.arg(root().join("benches/peers/bench_torch_ops.py")).args(&groups).env("THREADS", &n);
                collect(&mut theirs, &mut times)?;
            }
        }
    }
    print(&times);
    Ok(())
}

fn target_dir() -> std::path::PathBuf {
    std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), Into::into)
}

/// Runs one side and adds its CSV lines.
fn collect(command: &mut Command, times: &mut Times) -> Result<()> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    for line in String::from_utf8(output.stdout)?.lines() {
        let fields: Vec<&str> = line.split(',').collect();
        let [framework, threads, workload, wall, ..] = fields[..] else { continue };
        let key = (workload.to_owned(), threads.parse()?);
        times.entry(key).or_default().entry(framework.to_owned()).or_default().push(wall.parse()?);
    }
    Ok(())
}

fn print(times: &Times) {
    println!("| workload | threads | thalweg ms | torch eager ms | torch / thalweg |\n|---|---|---|---|---|");
    for ((workload, threads), by) in times {
        let median = |name: &str| {
            let mut t = by.get(name)?.clone();
            t.sort_by(f64::total_cmp);
            Some(t[t.len() / 2])
        };
        let text = |t: Option<f64>| t.map_or("–".to_owned(), |t| format!("{t:.5}"));
        let (ours, theirs) = (median("thalweg"), median("torch-eager"));
        let ratio = ours.zip(theirs).map_or("–".to_owned(), |(o, t)| format!("{:.2}", t / o));
        println!("| {workload} | {threads} | {} | {} | {ratio} |", text(ours), text(theirs));
    }
}
