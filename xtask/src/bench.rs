//! `cargo xtask bench`: ours and the rivals on the same work, in turns, so that all see the same machine.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

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
    let mut host = Host::new()?;
    for round in 0..wanted.rounds {
        for threads in &wanted.threads {
            eprintln!("round {} of {}, {threads} threads", round + 1, wanted.rounds);
            let threads = threads.to_string();
            if !wanted.ops.is_empty() {
                host.collect(ours().args(["--csv", "--threads", &threads]).args(&wanted.ops), &mut times)?;
                if rivals.torch {
                    let mut theirs = rivals.script("bench_torch_ops.py", &threads);
                    host.collect(theirs.args(&wanted.ops), &mut times)?;
                }
            }
            // One network after the other, so that a slow minute of the machine meets all sides of it.
            for network in &wanted.networks {
                eprintln!("  {}", network.letter);
                host.collect(ours().args(["--csv", "--threads", &threads]).args(&network.names), &mut times)?;
                for mut theirs in rivals.commands(network.letter, &threads) {
                    host.collect(&mut theirs, &mut times)?;
                }
            }
        }
    }
    println!("{host}");
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

/// The machine that all are measured on. One that is shared has phases, seconds to minutes long, in which two cores do the work of one
/// and a half: then whoever is measured in one looks slow. So before and after each measurement the same product is timed, and what was not
/// measured at the machine's pace is measured again, of ours and of the rivals alike.
struct Host {
    best: f64, // ms of the product at the best of times
    now: f64,
    n_again: usize,
    waited: Duration,
}

/// A product on two threads, whose time is the machine's pace.
const PRODUCT: &str = "mm-1024x1024x1024";
/// What is slower than the best pace by this is another phase.
const PHASE: f64 = 1.2;
const MOST_AGAIN: usize = 2;
/// How long to wait for better times, in one sitting.
const MOST_WAITED: Duration = Duration::from_secs(600);
const PAUSE: Duration = Duration::from_secs(5);

impl Host {
    fn new() -> Result<Self> {
        let paces = (0..3).map(|_| pace()).collect::<Result<Vec<f64>>>()?;
        let best = paces.iter().copied().fold(f64::INFINITY, f64::min);
        Ok(Self { best, now: paces[2], n_again: 0, waited: Duration::ZERO })
    }

    fn is_slow(&self) -> bool {
        self.now > PHASE * self.best
    }

    fn look(&mut self) -> Result<()> {
        self.now = pace()?;
        self.best = self.best.min(self.now);
        Ok(())
    }

    /// Runs one side at the machine's pace, as far as it has one, and adds its CSV lines.
    fn collect(&mut self, command: &mut Command, times: &mut Times) -> Result<()> {
        for again in 0.. {
            while self.is_slow() && self.waited < MOST_WAITED {
                std::thread::sleep(PAUSE);
                self.waited += PAUSE;
                self.look()?;
            }
            let lines = measure(command)?;
            self.look()?;
            if !self.is_slow() || again == MOST_AGAIN {
                return add(&lines, times);
            }
            self.n_again += 1;
        }
        unreachable!("it is not tried for ever")
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (best, waited) = (self.best, self.waited.as_secs());
        write!(
            f,
            "{PRODUCT} at best {best:.2} ms; {} measurements made again and {waited} s waited",
            self.n_again
        )?;
        write!(f, ", since the machine was more than {:.0} % slower", 100.0 * (PHASE - 1.0))
    }
}

/// Milliseconds that the product takes now.
fn pace() -> Result<f64> {
    let lines = measure(ours().args(["--csv", "--threads", "2", PRODUCT]))?;
    lines
        .split(',')
        .nth(3)
        .and_then(|field| field.parse().ok())
        .with_context(|| format!("no time in {lines:?}"))
}

/// Runs one side; its CSV lines.
fn measure(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot start {command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn add(lines: &str, times: &mut Times) -> Result<()> {
    for line in lines.lines() {
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
