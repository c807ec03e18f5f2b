//! The project's own chores.

mod bench;
mod bench_cluster;
mod check;
mod golden;
mod machines;
mod op_page;
mod programs;
mod proto;
mod simulate;
mod tidy;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

const USAGE: &str = "usage: cargo xtask <task>
  check                                  everything CI does
  golden [--dir PATH] [--only OP|FAMILY] expected values and gradients against ours
  bench [--rounds N] [--peers burn,candle] [GROUP ...]
                                         ours and rivals in one sitting (THALWEG_PYTHON names their interpreter)
  bench cluster [null|dense|sparse|delays] the parameter server, raw sockets, TensorFlow's (THALWEG_PYTHON)
  machines [avx512|neon] [--only TEST]   the kernels on emulated CPUs (needs Bochs and a kernel, or QEMU; see its file)
  op-page                                write docs/ops.md from the list of ops
  proto                                  write the Rust of the control plane from its .proto file
  simulate [--seed N | --from N --count N] the cluster under crashes, loss and pauses, without end
  tidy                                   layering, names, sizes and forbidden words
  fuzz-programs [--from SEED] [--count N] random programs, eager against compiled, without end unless counted
  fuzz [SECONDS]                         each file parser for so long (needs nightly and cargo-fuzz)";

fn main() -> std::process::ExitCode {
    match run() {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("xtask: {e:#}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.split_first() {
        Some((&"check", [])) => check::run(),
        Some((&"golden", rest)) => {
            let dir = value(rest, "--dir").map_or_else(|| root().join("golden"), PathBuf::from);
            golden::run_all(&dir, value(rest, "--only"))
        }
        Some((&"bench", ["cluster", parts @ ..])) => bench_cluster::run(parts),
        Some((&"bench", rest)) => bench::run(rest),
        Some((&"machines", rest)) => machines::run(rest),
        Some((&"op-page", [])) => op_page::write(),
        Some((&"proto", [])) => proto::write(),
        Some((&"simulate", rest)) => match value(rest, "--seed") {
            Some(seed) => simulate::one(seed.parse()?),
            None => {
                let first = value(rest, "--from").map_or(Ok(0), str::parse)?;
                simulate::seeds(first, value(rest, "--count").map(str::parse).transpose()?)
            }
        },
        Some((&"tidy", [])) => tidy::run(),
        Some((&"fuzz", rest)) => check::fuzz(rest.first().map_or(Ok(60), |s| s.parse())?),
        Some((&"fuzz-programs", rest)) => {
            let from = value(rest, "--from").map_or(Ok(0), str::parse)?;
            programs::run(from, value(rest, "--count").map(str::parse).transpose()?)
        }
        Some((&"help" | &"--help" | &"-h", _)) => {
            println!("{USAGE}");
            Ok(())
        }
        _ => bail!("{USAGE}"),
    }
}

/// The value after a flag.
fn value<'a>(args: &[&'a str], flag: &str) -> Option<&'a str> {
    args.iter().position(|a| *a == flag).and_then(|i| args.get(i + 1)).copied()
}

/// The top of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}
