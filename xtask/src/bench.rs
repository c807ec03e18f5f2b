//! `cargo xtask bench`: ours and the rivals on the same work, in turns, so that all see the same machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::{root, value};

/// (workload, threads) → framework → median wall times in ms, one per round.
type Times = BTreeMap<(String, usize), BTreeMap<String, Vec<f64>>>;

pub fn run(args: &[&str]) -> Result<()> {
    let rounds: usize = value(args, "--rounds").map_or(Ok(3), str::parse)?;
    // Programs of their own, which take long to build: only when asked for.
    let peers: Vec<&str> = value(args, "--peers").map_or(Vec::new(), |names| names.split(',').collect());
    let is_flag = |i: usize| args[i].starts_with("--") || i > 0 && args[i - 1].starts_with("--");
    let mut groups: Vec<&str> = (0..args.len()).filter(|&i| !is_flag(i)).map(|i| args[i]).collect();
    if groups.is_empty() {
        groups = vec!["eager", "product", "stream"];
    }
    build(&root(), &["-p", "thalweg-cli"])?;
    for peer in &peers {
        ensure!(["burn", "candle"].contains(peer), "--peers takes burn and candle, separated by a comma");
        build(&root().join("benches/peers").join(peer), &[])?;
    }
    let python = std::env::var("THALWEG_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let rivals = rivals(&python, &groups);
    let mut times = Times::new();
    for round in 0..rounds {
        for threads in [1, 2] {
            eprintln!("round {} of {rounds}, {threads} threads", round + 1);
            let n = threads.to_string();
            let mut ours = Command::new(target_dir().join("release/thalweg"));
            collect(ours.args(["bench", "--csv", "--threads", &n]).args(&groups), &mut times)?;
            for (script, arguments) in &rivals {
                let mut theirs = Command::new(&python);
                theirs.arg(root().join("benches/peers").join(script)).args(arguments).env("THREADS", &n);
                collect(&mut theirs, &mut times)?;
            }
            for peer in peers.iter().filter(|_| groups.contains(&"networks")) {
                let mut theirs = Command::new(target_dir().join(format!("release/peers_{peer}")));
                collect(theirs.arg("abcdefgh").env("RAYON_NUM_THREADS", &n), &mut times)?;
            }
        }
    }
    print(&times);
    Ok(())
}

/// Builds the package in a folder, for speed.
fn build(folder: &Path, arguments: &[&str]) -> Result<()> {
    let mut cargo = Command::new(env!("CARGO"));
    cargo.args(["build", "--release"]).args(arguments).current_dir(folder);
    let built = cargo.env("CARGO_TARGET_DIR", target_dir()).status()?;
    ensure!(built.success(), "the release build of {} failed", folder.display());
    Ok(())
}

/// The scripts to run beside ours; says which are skipped because a package is missing.
fn rivals<'a>(python: &str, groups: &[&'a str]) -> Vec<(&'static str, Vec<&'a str>)> {
    let has = |package: &str| {
        let found = Command::new(python).args(["-c", &format!("import {package}")]).output();
        let found = found.is_ok_and(|o| o.status.success());
        if !found {
            println!("skipped {package}: `{python}` cannot import it (set THALWEG_PYTHON to one that can)");
        }
        found
    };
    let ops: Vec<&str> = groups.iter().copied().filter(|g| *g != "networks").collect();
    let networks = ops.len() < groups.len();
    let mut rivals = Vec::new();
    if has("torch") {
        if !ops.is_empty() {
            rivals.push(("bench_torch_ops.py", ops));
        }
        if networks {
            rivals.push(("bench_torch.py", vec!["eager", "abcdefgh"]));
            rivals.push(("bench_torch.py", vec!["compile", "abcdefg"]));
        }
    }
    if networks && has("jax") {
        rivals.push(("bench_jax.py", vec!["abcdefgh"]));
    }
    rivals
}

pub fn target_dir() -> std::path::PathBuf {
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

/// Our median beside each rival's, and the best rival's over ours.
fn print(times: &Times) {
    let mut names: Vec<&String> =
        times.values().flat_map(BTreeMap::keys).filter(|n| *n != "thalweg").collect();
    names.sort();
    names.dedup();
    let head = names.iter().map(|n| format!(" {n} ms |")).collect::<String>();
    println!("| workload | threads | thalweg ms |{head} best rival / thalweg |");
    println!("|---|---|---|{}---|", "---|".repeat(names.len()));
    for ((workload, threads), by) in times {
        let median = |name: &str| {
            let mut t = by.get(name)?.clone();
            t.sort_by(f64::total_cmp);
            Some(t[t.len() / 2])
        };
        let text = |t: Option<f64>| t.map_or("–".to_owned(), |t| format!("{t:.5}"));
        let ours = median("thalweg");
        let theirs: Vec<Option<f64>> = names.iter().map(|n| median(n)).collect();
        let best = theirs.iter().flatten().copied().min_by(f64::total_cmp);
        let ratio = ours.zip(best).map_or("–".to_owned(), |(o, t)| format!("{:.2}", t / o));
        let cells = theirs.iter().map(|t| format!(" {} |", text(*t))).collect::<String>();
        println!("| {workload} | {threads} | {} |{cells} {ratio} |", text(ours));
    }
}
