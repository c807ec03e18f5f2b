//! The `thalweg` command: a thin layer over the library.

mod bench;
mod info;
mod inspect;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Tensors, gradients and models in pure Rust.
#[derive(Parser)]
#[command(name = "thalweg", version, arg_required_else_help = true, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "Examples:
  thalweg info                          what this machine offers
  thalweg inspect model.safetensors     names, dtypes, shapes and ranges of a file's tensors
  thalweg bench --threads 2 add matmul  time workloads on this machine";

#[derive(Subcommand)]
enum Command {
    /// Show the instruction set, the threads and the version.
    Info,
    /// List the tensors of a .npy, .npz or .safetensors file with their ranges.
    Inspect {
        /// The file.
        path: PathBuf,
        /// Print the values too (large tensors are summarised).
        #[arg(long)]
        values: bool,
    },
    /// Time workloads; without names, list them.
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let outcome = match Cli::parse().command {
        Command::Info => info::run(),
        Command::Inspect { path, values } => inspect::run(&path, values),
        Command::Bench(args) => bench::run(&args),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that stops early, such as `head`, is no error of ours.
        Err(e) if is_broken_pipe(&e) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("thalweg: {e}");
            ExitCode::FAILURE
        }
    }
}

fn is_broken_pipe(e: &anyhow::Error) -> bool {
    e.downcast_ref::<std::io::Error>().is_some_and(|e| e.kind() == std::io::ErrorKind::BrokenPipe)
}
