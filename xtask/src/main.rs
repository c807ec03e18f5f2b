//! The project's own chores.

mod bench;
mod check;
#[cfg(feature = "library")]
mod library;
mod machines;
mod tidy;

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};

const USAGE: &str = "usage: cargo xtask <task>
  check [STEP ...]                       everything CI does, or some of its steps
  golden [--dir PATH] [--only OP|FAMILY] expected values and gradients against ours
  bench [--rounds N] [--threads N,N] [--peers burn,candle] [NAME ...]
                                         ours and rivals in one sitting: the networks, or some of those or of the ops
                                         that `thalweg bench` lists (THALWEG_PYTHON names their interpreter)
  bench cluster [null|dense|sparse|delays|hogwild] the parameter server, raw sockets, iperf3, TensorFlow's (THALWEG_PYTHON)
  machines [avx512|neon] [--only TEST]   the kernels on emulated CPUs (needs Bochs and a kernel, or QEMU; see its file)
  op-page [--check]                      write docs/ops.md from the list of ops
  proto [--check]                        write the Rust of the control plane from its .proto file
  simulate [--seed N | --replay FILE | --from N --count N]  the cluster under crashes, loss and pauses, without end
  tidy                                   layering, names, sizes and forbidden words
  fuzz-programs [--from SEED] [--count N] random programs, eager against compiled, without end unless counted
  fuzz [SECONDS] [PARSER ...]            each parser, or some, for so long (needs nightly and cargo-fuzz)";

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
    if args.iter().any(|arg| ["help", "--help", "-h"].contains(arg)) {
        println!("{USAGE}");
        return Ok(());
    }
    match &args[..] {
        ["check", steps @ ..] => check::run(steps),
        ["golden" | "op-page" | "proto" | "simulate" | "fuzz-programs", ..] | ["bench", "cluster", ..] => {
            with_library(&args)
        }
        ["bench", rest @ ..] => bench::run(rest),
        ["machines", rest @ ..] => machines::run(rest),
        ["tidy"] => tidy::run(),
        ["fuzz", rest @ ..] => check::fuzz(rest),
        _ => bail!("{USAGE}"),
    }
}

#[cfg(feature = "library")]
fn with_library(args: &[&str]) -> Result<()> {
    library::run(args)
}

/// Goes on as the program that has the library.
#[cfg(not(feature = "library"))]
fn with_library(args: &[&str]) -> Result<()> {
    let mut cargo = std::process::Command::new(env!("CARGO"));
    cargo.args(["run", "--quiet", "--package", "xtask", "--features", "library", "--"]).args(args);
    check::succeed(cargo.current_dir(root()))
}

/// The value after a flag.
fn value<'a>(args: &[&'a str], flag: &str) -> Option<&'a str> {
    args.iter().position(|a| *a == flag).and_then(|i| args.get(i + 1)).copied()
}

/// The top of the workspace.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("xtask lies in the workspace").to_owned()
}
