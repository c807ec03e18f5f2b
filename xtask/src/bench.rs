//! `cargo xtask bench`: ours and the rivals on the same work, in turns, so that all see the same machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::check::succeed;
use crate::{root, value};

/// (workload, threads) → framework → median wall times in ms, one per round.
type Times = BTreeMap<(String, usize), BTreeMap<String, Vec<f64>>>;

/// The networks that every rival has, by the letters that their scripts take.
const NETWORKS: &str = "abcdefgh";
/// The ratio of the best rival to ours that is promised, where it is not 1.
const TARGETS: [(&str, f64); 2] = [("a", 1.5), ("g", 3.0)];
const TARGET_OF_MEAN: f64 = 1.5;

/// What to compare, from the command line.
struct Wanted<'a> {
    rounds: usize,
    threads: Vec<usize>,
    /// Rivals that are programs of their own and take long to build: only when asked for.
    peers: Vec<&'a str>,
    /// Groups or names of single ops.
    ops: Vec<&'a str>,
    /// Names of networks, and their letters.
    networks: Vec<&'a str>,
    letters: String,
}

impl<'a> Wanted<'a> {
    fn new(args: &[&'a str]) -> Result<Self> {
        let is_flag = |i: usize| args[i].starts_with("--") || i > 0 && args[i - 1].starts_with("--");
        let mut names: Vec<&str> = (0..args.len()).filter(|&i| !is_flag(i)).map(|i| args[i]).collect();
        if names.is_empty() {
            names.push("networks");
        }
        let is_network =
            |name: &str| name == "networks" || name == "e-bf16" || name.len() == 1 && NETWORKS.contains(name);
        let (networks, ops): (Vec<&str>, Vec<&str>) = names.into_iter().partition(|name| is_network(name));
        let letter = |&c: &char| networks.iter().any(|n| *n == "networks" || n.starts_with(c));
        let threads = value(args, "--threads").unwrap_or(if ops.is_empty() { "2" } else { "1,2" });
        let peers = value(args, "--peers").map_or(Vec::new(), |names| names.split(',').collect());
        for peer in &peers {
            ensure!(["burn", "candle"].contains(peer), "--peers takes burn and candle, separated by a comma");
        }
        Ok(Self {
            rounds: value(args, "--rounds").map_or(Ok(3), str::parse)?,
            threads: threads.split(',').map(str::parse).collect::<Result<_, _>>()?,
            peers,
            letters: NETWORKS.chars().filter(letter).collect(),
            ops,
            networks,
        })
    }
}

pub fn run(args: &[&str]) -> Result<()> {
    let wanted = Wanted::new(args)?;
    build(&root(), &["-p", "thalweg-cli"])?;
    for peer in &wanted.peers {
        build(&root().join("benches/peers").join(peer), &[])?;
    }
    let python = std::env::var("THALWEG_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let rivals = rivals(&python, &wanted);
    if !wanted.networks.is_empty() && rivals.iter().any(|(script, _)| *script == "bench_torch.py") {
        ensure!(
            can_import(&python, "safetensors"),
            "`{python}` cannot import safetensors, which comparing losses needs: install it there"
        );
        agree(&python, &wanted.networks)?;
    }
    let mut times = Times::new();
    for round in 0..wanted.rounds {
        for threads in &wanted.threads {
            eprintln!("round {} of {}, {threads} threads", round + 1, wanted.rounds);
            let n = threads.to_string();
            let mut ours = ours();
            ours.args(["--csv", "--threads", &n]).args(&wanted.ops).args(&wanted.networks);
            collect(&mut ours, &mut times)?;
            for (script, arguments) in &rivals {
                let mut theirs = Command::new(&python);
                theirs.arg(root().join("benches/peers").join(script)).args(arguments).env("THREADS", &n);
                collect(&mut theirs, &mut times)?;
            }
            for peer in wanted.peers.iter().filter(|_| !wanted.letters.is_empty()) {
                let mut theirs = Command::new(target_dir().join(format!("release/peers_{peer}")));
                collect(theirs.arg(&wanted.letters).env("RAYON_NUM_THREADS", &n), &mut times)?;
            }
        }
    }
    print(&times)
}

/// `thalweg bench`.
fn ours() -> Command {
    let mut ours = Command::new(target_dir().join("release/thalweg"));
    ours.arg("bench");
    ours
}

/// Whether both sides compute the same from the same weights: nothing is timed before that is known.
fn agree(python: &str, networks: &[&str]) -> Result<()> {
    let folder = target_dir().join("agree");
    succeed(ours().arg("--export").arg(&folder).args(networks))?;
    let mut theirs = Command::new(python);
    succeed(theirs.arg(root().join("benches/peers/agree.py")).arg(&folder))
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
fn rivals<'a>(python: &str, wanted: &'a Wanted) -> Vec<(&'static str, Vec<&'a str>)> {
    let has = |package: &str| {
        let found = can_import(python, package);
        if !found {
            println!("skipped {package}: `{python}` cannot import it (set THALWEG_PYTHON to one that can)");
        }
        found
    };
    let letters = wanted.letters.as_str();
    let mut rivals = Vec::new();
    if has("torch") {
        if !wanted.ops.is_empty() {
            rivals.push(("bench_torch_ops.py", wanted.ops.clone()));
        }
        if !letters.is_empty() {
            rivals.push(("bench_torch.py", vec!["eager", letters]));
            // It has no recurrent nets.
            let compiled = letters.trim_end_matches('h');
            rivals.extend((!compiled.is_empty()).then(|| ("bench_torch.py", vec!["compile", compiled])));
        }
    }
    if !letters.is_empty() && has("jax") {
        rivals.push(("bench_jax.py", vec![letters]));
    }
    if !letters.is_empty() && wanted.peers.is_empty() {
        println!("skipped burn and candle: `--peers burn,candle` builds them");
    }
    rivals
}

fn can_import(python: &str, package: &str) -> bool {
    let tried = Command::new(python).args(["-c", &format!("import {package}")]).output();
    tried.is_ok_and(|o| o.status.success())
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

/// Our median beside each rival's, and the best rival's over ours; of networks, whether that is what is promised.
fn print(times: &Times) -> Result<()> {
    let mut names: Vec<&String> =
        times.values().flat_map(BTreeMap::keys).filter(|n| *n != "thalweg").collect();
    names.sort();
    names.dedup();
    let head = names.iter().map(|n| format!(" {n} ms |")).collect::<String>();
    println!("| workload | threads | thalweg ms |{head} best rival / thalweg |");
    println!("|---|---|---|{}---|", "---|".repeat(names.len()));
    let mut ratios = Vec::new();
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
        let ratio = ours.zip(best).map(|(ours, best)| best / ours);
        let cells = theirs.iter().map(|t| format!(" {} |", text(*t))).collect::<String>();
        let shown = ratio.map_or("–".to_owned(), |ratio| format!("{ratio:.2}"));
        println!("| {workload} | {threads} | {} |{cells} {shown} |", text(ours));
        let is_network = workload == "e-bf16" || workload.len() == 1;
        ratios.extend(ratio.filter(|_| is_network && *threads == 2).map(|ratio| (workload.as_str(), ratio)));
    }
    judge(&ratios)
}

/// The promise: no network slower than the best rival, some of them and the mean by more. A broken promise is an error.
fn judge(ratios: &[(&str, f64)]) -> Result<()> {
    if ratios.is_empty() {
        return Ok(());
    }
    let mean = (ratios.iter().map(|(_, ratio)| ratio.ln()).sum::<f64>() / ratios.len() as f64).exp();
    println!("geometric mean of the networks on two threads: {mean:.2}, promised {TARGET_OF_MEAN}");
    let target = |workload: &str| TARGETS.iter().find(|(name, _)| *name == workload).map_or(1.0, |(_, t)| *t);
    let mut missed: Vec<String> = ratios
        .iter()
        .filter(|(workload, ratio)| *ratio < target(workload))
        .map(|(workload, ratio)| format!("{workload} is at {ratio:.2}, promised {}", target(workload)))
        .collect();
    // A mean of some says nothing of the promise.
    if mean < TARGET_OF_MEAN && ratios.len() > NETWORKS.len() {
        missed.push(format!("the mean is at {mean:.2}, promised {TARGET_OF_MEAN}"));
    }
    ensure!(missed.is_empty(), "of the best rival: {}", missed.join("; "));
    Ok(())
}
