//! `cargo xtask bench`: ours and the rivals on the same work, in turns, so that all see the same machine.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};

use crate::check::succeed;
use crate::root;

/// (workload, threads) → framework → median wall times in ms, one per round.
type Times = BTreeMap<(String, usize), BTreeMap<String, Vec<f64>>>;

/// The networks, by the letters that the rivals take, and the names by which ours has them.
const NETWORKS: [(&str, &[&str]); 8] = [
    ("a", &["a"]),
    ("b", &["b"]),
    ("c", &["c"]),
    ("d", &["d"]),
    ("e", &["e", "e-bf16"]),
    ("f", &["f"]),
    ("g", &["g"]),
    ("h", &["h"]),
];
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
    networks: Vec<Network<'a>>,
}

/// A network: its letter, which the rivals take, and the names by which ours knows what belongs to it.
struct Network<'a> {
    letter: &'a str,
    names: Vec<&'a str>,
}

impl<'a> Wanted<'a> {
    fn new(args: &[&'a str]) -> Result<Self> {
        let (mut rounds, mut threads, mut peers, mut names) = (3, None, Vec::new(), Vec::new());
        let mut rest = args.iter();
        while let Some(&arg) = rest.next() {
            let mut value = || rest.next().with_context(|| format!("{arg} wants a value"));
            match arg {
                "--rounds" => rounds = value()?.parse().context("--rounds takes a number")?,
                "--threads" => threads = Some(*value()?),
                "--peers" => peers = value()?.split(',').collect(),
                _ => names.push(arg),
            }
        }
        if let Some(unknown) = names.iter().find(|name| name.starts_with('-')) {
            bail!("bench has no {unknown}; `cargo xtask help` lists what it takes");
        }
        for peer in &peers {
            ensure!(["burn", "candle"].contains(peer), "--peers takes burn and candle, separated by a comma");
        }
        let all = names.is_empty() || names.contains(&"networks");
        let networks = NETWORKS.iter().filter_map(|&(letter, known)| {
            let wanted = |name: &&&str| all || names.contains(*name);
            let names: Vec<&str> = known.iter().filter(wanted).copied().collect();
            (!names.is_empty()).then_some(Network { letter, names })
        });
        let networks: Vec<Network> = networks.collect();
        names.retain(|name| *name != "networks" && !networks.iter().any(|n| n.names.contains(name)));
        let threads = threads.unwrap_or(if names.is_empty() { "2" } else { "1,2" });
        let threads = threads.split(',').map(str::parse).collect::<Result<_, _>>();
        let threads = threads.context("--threads takes numbers, separated by commas")?;
        Ok(Self { rounds, threads, peers, ops: names, networks })
    }
}

pub fn run(args: &[&str]) -> Result<()> {
    let wanted = Wanted::new(args)?;
    build(&root(), &["-p", "thalweg-cli"])?;
    for peer in &wanted.peers {
        build(&root().join("benches/peers").join(peer), &[])?;
    }
    let python = std::env::var("THALWEG_PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let rivals = Rivals::find(&python, &wanted);
    if rivals.torch && !wanted.networks.is_empty() {
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
            let threads = threads.to_string();
            if !wanted.ops.is_empty() {
                collect(ours().args(["--csv", "--threads", &threads]).args(&wanted.ops), &mut times)?;
                if rivals.torch {
                    let mut theirs = rivals.script("bench_torch_ops.py", &threads);
                    collect(theirs.args(&wanted.ops), &mut times)?;
                }
            }
            // One network after the other, so that a slow minute of the machine meets all sides of it.
            for network in &wanted.networks {
                eprintln!("  {}", network.letter);
                collect(ours().args(["--csv", "--threads", &threads]).args(&network.names), &mut times)?;
                for mut theirs in rivals.commands(network.letter, &threads) {
                    collect(&mut theirs, &mut times)?;
                }
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
fn agree(python: &str, networks: &[Network]) -> Result<()> {
    let folder = target_dir().join("agree");
    let names = networks.iter().flat_map(|network| &network.names);
    succeed(ours().arg("--export").arg(&folder).args(names))?;
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

/// The rivals that are here.
struct Rivals<'a> {
    python: &'a str,
    torch: bool,
    jax: bool,
    peers: &'a [&'a str],
}

impl<'a> Rivals<'a> {
    /// Says which are skipped, and why.
    fn find(python: &'a str, wanted: &'a Wanted) -> Self {
        let has = |package: &str| {
            let found = can_import(python, package);
            if !found {
                println!(
                    "skipped {package}: `{python}` cannot import it (set THALWEG_PYTHON to one that can)"
                );
            }
            found
        };
        if wanted.peers.is_empty() && !wanted.networks.is_empty() {
            println!("skipped burn and candle: `--peers burn,candle` builds them");
        }
        let jax = !wanted.networks.is_empty() && has("jax");
        Self { python, torch: has("torch"), jax, peers: &wanted.peers }
    }

    fn script(&self, name: &str, threads: &str) -> Command {
        let mut command = Command::new(self.python);
        command.arg(root().join("benches/peers").join(name)).env("THREADS", threads);
        command
    }

    /// Everything to run beside ours on a network.
    fn commands(&self, letter: &str, threads: &str) -> Vec<Command> {
        let mut commands = Vec::new();
        let mut script = |name, arguments: &[&str]| {
            let mut command = self.script(name, threads);
            command.args(arguments).arg(letter);
            commands.push(command);
        };
        if self.torch {
            script("bench_torch.py", &["eager"]);
            // Its compiler has no recurrent nets.
            if letter != "h" {
                script("bench_torch.py", &["compile"]);
            }
        }
        if self.jax {
            script("bench_jax.py", &[]);
        }
        for peer in self.peers {
            let mut command = Command::new(target_dir().join(format!("release/peers_{peer}")));
            command.arg(letter).env("RAYON_NUM_THREADS", threads);
            commands.push(command);
        }
        commands
    }
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
        let is_network = NETWORKS.iter().any(|(_, names)| names.contains(&workload.as_str()));
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
